// SPDX-License-Identifier: Apache-2.0
// What reordering does to blocks that sparse methods could skip (docs/block-masks.md): rows of
// calibrated heads, blocks of 128 gathered keys, in FP64.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "accuracy/heads.hpp"

namespace vca {
namespace {

using namespace spec;
using test::CalibratedHead;

constexpr int64_t kRows = 64;

struct Skippable {
  double low = 0;   // blocks whose largest key is more than 10 octaves below the row's
  double mass = 0;  // blocks that may go while 99 % of the mass stays
  double f = 0;     // energy that the block means remove
};

GroupingInput input_of(const CalibratedHead& head, int64_t window) {
  GroupingInput input;
  input.n_tokens = head.tensors.n;
  input.head_dim = test::kHeadDim;
  input.row = [&head](int64_t token, float* out) {
    std::copy_n(head.tensors.v.begin() + token * test::kHeadDim, test::kHeadDim, out);
  };
  input.grid = head.tensors.grid;
  if (window == 0) window = head.tensors.n;
  for (int64_t begin = 0; begin < head.tensors.n; begin += window) {
    Segment s{begin, std::min(window, head.tensors.n - begin), 0};
    input.segments.push_back(s);
    input.valid_by_segment.emplace_back();
    for (int64_t t = s.begin; t < s.begin + s.len; ++t) input.valid_by_segment.back().push_back(t);
  }
  return input;
}

// window: grouped inside runs of so many tokens, which a caller gets by passing them as segments.
Skippable measure(const CalibratedHead& head, Grouping kind, int64_t window) {
  const GroupingInput input = input_of(head, window);
  GroupingParams params;
  params.kind = kind;
  std::vector<std::vector<int64_t>> order = input.valid_by_segment;
  if (kind != Grouping::identity) order = group_head(input, params, nullptr).order_by_segment;
  Skippable out;
  out.f = f_g_of_order(input, params, order);
  for (int64_t i = 0; i < kRows; ++i) {
    const double* p = head.exact.prob.data() + i * head.p.s_kv;
    std::vector<double> sums;
    double top = 0, low = 0;
    for (int64_t t = 0; t < head.p.s_kv; ++t) top = std::max(top, p[t]);
    for (const auto& segment : order)
      for (size_t first = 0; first < segment.size(); first += kBlock) {
        double sum = 0, max = 0;
        for (size_t n = first; n < std::min(segment.size(), first + kBlock); ++n) {
          sum += p[segment[n]];
          max = std::max(max, p[segment[n]]);
        }
        sums.push_back(sum);
        low += max < top * 0x1p-10;
      }
    const auto blocks = static_cast<double>(sums.size());
    std::sort(sums.begin(), sums.end());
    double gone = 0;
    int64_t dropped = 0;
    for (const double s : sums) {
      if (gone + s > 0.01) break;
      gone += s;
      ++dropped;
    }
    out.low += low / blocks / kRows;
    out.mass += static_cast<double>(dropped) / blocks / kRows;
  }
  return out;
}

void print(const char* name, const Skippable& s) {
  printf("| %-24s | %5.1f | %5.1f | %.3f |\n", name, 100 * s.low, 100 * s.mass, s.f);
  fflush(stdout);
}

TEST(BlockSkip, ReorderingByValueTakesSkippableBlocksAwayAndWindowsKeepThem) {
  for (const test::Family family : test::kFamilies) {
    const auto head = std::make_unique<CalibratedHead>(family, test::kSmallGrid, 30.0, 1, kRows);
    printf("%s: order | blocks > 10 octaves down %% | droppable at 99 %% of mass %% | f\n",
           to_string(family));
    const Skippable raster = measure(*head, Grouping::identity, 0);
    print("token order", raster);
    print("cubes", measure(*head, Grouping::cubes, 0));
    const Skippable sorted = measure(*head, Grouping::kdtree, 0);
    print("kdtree, whole clip", sorted);
    const Skippable window = measure(*head, Grouping::kdtree, 1024);
    for (const int64_t tokens : {4096, 2048, 1024, 512}) {
      print(("kdtree in " + std::to_string(tokens)).c_str(),
            tokens == 1024 ? window : measure(*head, Grouping::kdtree, tokens));
    }
    EXPECT_LE(sorted.mass, raster.mass + 0.01);
    EXPECT_GE(window.mass, sorted.mass - 0.01);
    EXPECT_GT(window.f, raster.f);
  }
}

}  // namespace
}  // namespace vca
