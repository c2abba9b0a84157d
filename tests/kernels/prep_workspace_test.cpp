// SPDX-License-Identifier: Apache-2.0
// The workspace of preprocessing: where the arrays lie, and which of them share memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "kernels/host_launcher.hpp"
#include "kernels/prep_compare.hpp"
#include "kernels/prep_sizes.hpp"

namespace vca {
namespace {

using namespace kernels;
using tests::request_of;
using tests::Shape;

// What happens between writing an array and reading it for the last time.
enum Stage { kRanks, kGrouping, kOffset, kGather, kQueries, kAttention };

struct Array {
  const char* name;
  int64_t at, bytes;
  Stage first, last;
};

int64_t rounded(int64_t bytes) { return prep::ceil_div(bytes, 1024) * 1024; }

// The table of src/kernels/prep/README.md once more.
std::vector<Array> arrays_of(const prep::PrepParams& r, const prep::Layout& l) {
  const int64_t h_q = r.q.shape[1], h_kv = r.k.shape[1];
  const int64_t d = r.q.shape[3] <= 64 ? 64 : 128, n = static_cast<int64_t>(r.subs.size());
  int64_t t = 0, c = 0, g = 0, segments = 0;
  for (const prep::Sub& sub : r.subs) {
    int64_t blocks = 0;
    for (int64_t i = 0; i < sub.n_segments; ++i)
      blocks += prep::ceil_div(r.segments[static_cast<size_t>(sub.first_segment + i)].len, 128);
    t += prep::ceil_div(sub.q_len, 128);
    c += blocks;
    g += prep::ceil_div(blocks, 8);
    segments += sub.n_segments;
  }
  std::vector<Array> out = {
      {"descriptors", l.descriptors, l.descriptor_bytes, kRanks, kAttention},
      {"q_unit", l.q_unit, h_q * t * 256, kRanks, kAttention},
      {"k_scale", l.k_scale, h_kv * c * 16, kRanks, kAttention},
      {"s_v", l.s_v, n * h_kv * 4 * d, kRanks, kAttention},
      {"exponent", l.exponent, n * h_q * 4, kRanks, kAttention},
      {"segment state", l.segment_state, segments * 12, kRanks, kAttention},
      {"chunk ranks", l.chunk_rank, c * 4, kRanks, kAttention},
      {"n_valid", l.n_valid, n * 4, kRanks, kAttention},
      {"tokens", l.tokens, c * 512, kRanks, kAttention},
      {"block_valid", l.block_valid, c * 4, kRanks, kAttention},
      {"block_rank", l.block_rank, c * 4, kRanks, kAttention},
      {"k_offset", l.k_offset, n * h_kv * 4 * d, kRanks, kAttention},
      {"max|V|", l.v_abs_max, n * h_kv * 4, kRanks, kAttention},
      {"factor on V", l.v_factor, n * h_kv * 4 * d, kRanks, kAttention},
      {"q tiles", l.q_tiles, h_q * t * 128 * d, kQueries, kAttention},
      {"k tiles", l.k_tiles, h_kv * c * 128 * d, kGather, kAttention},
      {"v tiles", l.v_tiles, h_kv * c * 128 * (d + 8), kGather, kAttention},
      {"v_partial", l.v_partial, h_kv * g * 8 * d, kGrouping, kGrouping},
      {"k_partial", l.k_partial, h_kv * g * 4 * d, kOffset, kOffset},
  };
  if (r.recipe->v_smooth())
    out.push_back({"mean tiles", l.mu_tiles, h_kv * g * 32 * d, kGather, kAttention});
  if (r.lse) out.push_back({"qk_offset", l.qk_offset, h_q * t * 512, kRanks, kAttention});
  if (r.recipe->qk == spec::QkFormat::e4m3_head) {
    out.push_back({"max|K|", l.k_head_max, n * h_kv * 4, kRanks, kAttention});
    out.push_back({"max|Q|", l.q_head_max, n * h_q * 4, kRanks, kAttention});
  }
  if (r.energy_removed != nullptr) {
    out.push_back({"energies of rows", l.energy_rows, h_kv * c * 512, kGather, kGather});
    out.push_back({"energies of blocks", l.energy_blocks, h_kv * c * 4, kGather, kGather});
  }
  if (r.grouping.active()) {
    const int64_t order = h_kv * c * 512;
    out.push_back({"order", l.grouping + l.group->out_order, order, kGrouping, kGather});
    out.push_back({"grouping", l.grouping + l.group->order_end, l.group->bytes - order, kGrouping,
                   kGrouping});
  }
  return out;
}

bool share(const Array& a, const Array& b) {
  return a.at < b.at + b.bytes && b.at < a.at + a.bytes;
}
bool alive_together(const Array& a, const Array& b) {
  return a.first <= b.last && b.first <= a.last;
}

// Bytes by the formula of the README.
int64_t expected_bytes(const std::vector<Array>& arrays) {
  int64_t kept = 0, queries = 0, gathered = 0, scratch = 0, tiles = 0;
  for (const Array& a : arrays) {
    if (a.first == kRanks)
      kept += rounded(a.bytes);
    else if (a.first == kQueries)
      queries += rounded(a.bytes);
    else if (a.last == kAttention)
      tiles += rounded(a.bytes);
    else if (a.last == kGather)
      gathered += std::string(a.name) == "order" ? a.bytes : rounded(a.bytes);
    else
      scratch += std::string(a.name) == "grouping" ? a.bytes : rounded(a.bytes);
  }
  return kept + std::max(std::max(queries, rounded(gathered)) + tiles, rounded(gathered + scratch));
}

TEST(PrepWorkspace, ArraysShareMemoryOnlyIfNeverAliveTogether) {
  const spec::Grouping kinds[] = {spec::Grouping::identity, spec::Grouping::cubes,
                                  spec::Grouping::kmeans, spec::Grouping::kdtree,
                                  spec::Grouping::vsmooth};
  // As many queries as keys, few of one kind, tails, and 7,000 blocks.
  const Shape shapes[] = {{1, 40, 40, 75600, 75600, 128}, {2, 4, 2, 130, 40000, 64},
                          {1, 8, 8, 40000, 77, 128},      {1, 1, 1, 1, 1, 16},
                          {1, 2, 1, 256, 896000, 64},     {3, 2, 2, 896, 1000, 96}};
  int sharing = 0;
  float f = 0.0f;
  const int32_t step = 0;
  uint64_t state = 0;
  for (const Shape& shape : shapes)
    for (const char* recipe : {"vc8", "fp8", "sage2"})
      for (const spec::Grouping kind : kinds)
        for (int options = 0; options < 8; ++options) {
          prep::PrepParams r = request_of(shape, recipe, kind);
          if (!r.recipe->v_smooth() && kind != spec::Grouping::identity) continue;
          r.lse = (options & 1) != 0;
          if ((options & 2) != 0) r.energy_removed = &f;
          if ((options & 4) != 0 && r.recipe->v_smooth()) {
            r.grouping.state = &state;
            r.grouping.step = &step;
          }
          const prep::Layout layout(r);
          const std::vector<Array> arrays = arrays_of(r, layout);
          ASSERT_EQ(layout.bytes, expected_bytes(arrays));
          for (const Array& a : arrays) {
            const bool grouping = std::string(a.name) == "grouping";
            ASSERT_EQ(a.at % (grouping ? 256 : 1024), 0) << a.name;
            ASSERT_GE(a.at, 0) << a.name;
            ASSERT_LE(a.at + a.bytes, layout.bytes) << a.name;
            for (const Array& b : arrays) {
              if (&a == &b || !share(a, b)) continue;
              ++sharing;
              ASSERT_FALSE(alive_together(a, b)) << a.name << " and " << b.name;
            }
          }
        }
  EXPECT_GT(sharing, 1000);
}

// The stage whose tiles a pass writes.
template <class Kernel>
constexpr Stage kWrites = kRanks;
template <prep::Source kSource, int kDPad, prep::Turn kTurn>
constexpr Stage kWrites<prep::KeyTiles<kSource, kDPad, kTurn>> = kGather;
template <prep::Source kSource, int kDPad, prep::Turn kTurn>
constexpr Stage kWrites<prep::QueryTiles<kSource, kDPad, kTurn>> = kQueries;

// Overwrites, at the last moment, what the tiles may be written over: what a pass still read there
// would be seen in the operands, wherever the tiles of this shape lie. Keeps a copy of the order.
class ClearingLauncher : public tests::HostLauncher {
 public:
  ClearingLauncher(const prep::Layout& layout, uint8_t* workspace, uint8_t value)
      : HostLauncher(value), layout_(layout), workspace_(workspace), value_(value) {}

  template <class Kernel>
  void launch(const typename Kernel::Params& params, int64_t blocks) {
    if constexpr (kWrites<Kernel> == kGather) {
      if (!params.only_maximum && !gathering_) {
        gathering_ = true;
        std::memset(workspace_ + layout_.gathered_end, value_,
                    static_cast<size_t>(layout_.scratch_end - layout_.gathered_end));
      }
    } else if constexpr (kWrites<Kernel> == kQueries) {
      if (!params.only_maximum) {
        if (params.order != nullptr) order.assign(params.order, params.order + places());
        std::memset(workspace_ + layout_.shared, value_,
                    static_cast<size_t>(layout_.gathered_end - layout_.shared));
        cleared = gathering_;
      }
    }
    HostLauncher::launch<Kernel>(params, blocks);
  }

  std::vector<int32_t> order;
  bool cleared = false;

 private:
  int64_t places() const { return layout_.group.has_value() ? layout_.group->places : 0; }

  const prep::Layout& layout_;
  uint8_t* workspace_;
  uint8_t value_;
  bool gathering_ = false;
};

// Tokens of the valid columns, which must be those of the segments.
void take_order(const std::vector<int32_t>& order, const prep::Layout& layout,
                tests::PrepProblem& host) {
  for (size_t i = 0; i < host.problem.subs.size(); ++i)
    for (int64_t h = 0; h < host.shape.h_kv; ++h) {
      const SubInfo& info = layout.sub_info[i];
      auto* at = order.data() + (info.kv_block_base + h * info.kv_block_stride) * 128;
      auto& segments =
          host.order_by_segment[i * static_cast<size_t>(host.shape.h_kv) + static_cast<size_t>(h)];
      for (size_t s = 0; s < segments.size(); ++s) {
        const auto n = static_cast<int64_t>(segments[s].size());
        segments[s].assign(at, at + n);
        at += prep::ceil_div(n, 128) * 128;
        std::vector<int64_t> sorted = segments[s];
        std::sort(sorted.begin(), sorted.end());
        ASSERT_EQ(sorted, host.problem.subs[i].segments[s]);
      }
    }
}

// A call with whatever the workspace held before; operands and f are the specification's.
void expect_operands(tests::PrepProblem& host, uint8_t value) {
  const prep::Layout layout(host.request);
  tests::AlignedBytes workspace;
  workspace.resize(static_cast<size_t>(layout.bytes));
  std::memset(workspace.data, value ^ 0xFF, workspace.size);
  ClearingLauncher launcher(layout, workspace.data, value);
  prep::run_passes(host.request, workspace.data, launcher);
  ASSERT_TRUE(launcher.cleared);
  if (layout.group.has_value()) {
    ASSERT_NO_FATAL_FAILURE(take_order(launcher.order, layout, host));
  }
  const AttentionParams got = prep::attention_params(host.request, workspace.data);
  EXPECT_EQ(tests::PrepComparison(host, got,
                                  reinterpret_cast<const float*>(workspace.data + layout.k_offset),
                                  host.request.energy_removed)
                .run(),
            "");
}

constexpr uint8_t kValues[] = {0x00, 0x7F, 0xFF};  // zeros; large codes and tokens; NaN, -1

TEST(PrepWorkspace, OperandsComeOutOfClearedScratchMemoryWithoutAGrouping) {
  for (const char* recipe : {"vc8", "sage2", "fp8"})
    for (const bool f : {false, true}) {
      SCOPED_TRACE(recipe);
      tests::PrepProblem host({.name = "",
                               .recipe = recipe,
                               .h_q = 2,
                               .h_kv = 2,
                               .s_q = 200,
                               .s_kv = 1300,
                               .d = 64,
                               .layout = tests::Layout::with_text_and_padding});
      std::vector<float> energy(2);
      if (f) host.request.energy_removed = energy.data();
      for (const uint8_t value : kValues) expect_operands(host, value);
    }
}

struct GroupedCase {
  const char* name;
  spec::Grouping kind;
  tests::PrepCase shape;
  std::array<int64_t, 3> grid{0, 0, 0};
};

// Every kind of order: without a state and with one that is cold, warm, kept and of token order.
void expect_grouped(const GroupedCase& c) {
  SCOPED_TRACE(c.name);
  tests::PrepProblem host(c.shape);
  const size_t n_units = host.problem.subs.size() * static_cast<size_t>(c.shape.h_kv);
  std::vector<float> energy(n_units);
  host.request.energy_removed = energy.data();
  host.request.grouping.kind = c.kind;
  host.request.grouping.grid = c.grid;
  host.request.grouping.video.resize(host.request.segments.size());
  host.request.grouping.video[0] = true;
  if (c.kind != spec::Grouping::identity) expect_operands(host, kValues[0]);

  const prep::Layout sizes = [&] {
    prep::PrepParams with_state = host.request;
    with_state.grouping.state = &host;
    return prep::Layout(with_state);
  }();
  const group::StateLayout layout(sizes.n_units, sizes.group->places);
  tests::AlignedBytes state;
  state.resize(static_cast<size_t>(layout.bytes));
  *reinterpret_cast<group::StateHeader*>(state.data) = {group::kStateMagic, 9, layout.n_units,
                                                        layout.bytes};
  auto* units = reinterpret_cast<group::UnitState*>(state.data + layout.units);
  std::fill_n(units, layout.n_units, group::UnitState{});
  int32_t step = 0;
  host.request.grouping.state = state.data;
  host.request.grouping.state_hash = 9;
  host.request.grouping.step = &step;
  host.request.grouping.policy.steps = 8;
  host.request.grouping.policy.window = 2;
  const std::pair<int32_t, int32_t> calls[] = {
      {0, VCA_AFTER_REUSE}, {1, VCA_AFTER_REUSE}, {5, VCA_AFTER_REUSE}, {6, VCA_AFTER_IDENTITY}};
  for (size_t i = 0; i < std::size(calls); ++i) {
    SCOPED_TRACE("call " + std::to_string(i));
    step = calls[i].first;
    host.request.grouping.policy.after = calls[i].second;
    expect_operands(host, kValues[i % std::size(kValues)]);
    EXPECT_EQ(units[0].last_call_step, step);
    EXPECT_EQ(units[0].step, i == 0 ? 0 : 1);  // calls 0 and 1 form an order
  }
}

TEST(PrepWorkspace, OperandsComeOutOfClearedScratchMemoryWithEveryOrder) {
  const tests::PrepCase plain{.name = "", .h_q = 2, .h_kv = 1, .s_q = 200, .s_kv = 700, .d = 64};
  tests::PrepCase odd = plain;  // tokens by a kernel of their own; lengths, masks, small segments
  odd.memory = tests::Memory::misaligned;
  odd.layout = tests::Layout::with_text_and_padding;
  odd.b = 2;
  odd.lens = odd.mask = true;
  tests::PrepCase few = plain;  // the order is longer than the queries' tiles
  few.h_q = few.h_kv = 1;
  few.s_q = 1;
  few.s_kv = 2200;
  expect_grouped({"vsmooth", spec::Grouping::vsmooth, plain});
  expect_grouped({"kdtree", spec::Grouping::kdtree, plain});
  expect_grouped({"kmeans", spec::Grouping::kmeans, plain});
  expect_grouped({"cubes", spec::Grouping::cubes, plain, {7, 10, 10}});
  expect_grouped({"identity", spec::Grouping::identity, plain});
  expect_grouped({"vsmooth, by element", spec::Grouping::vsmooth, odd});
  expect_grouped({"vsmooth, one query", spec::Grouping::vsmooth, few});
}

}  // namespace
}  // namespace vca
