// SPDX-License-Identifier: Apache-2.0
//
// Permutations pinned by hash: the same on every compiler, optimisation level and machine. A change
// here is a change of SPEC_VERSION. The input is made of multiples of 2^-12, so it is the same
// everywhere too.
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <string>

#include "spec/grouping/grouping.hpp"
#include "spec/grouping_inputs.hpp"

namespace vca::spec {
namespace {

uint64_t hash_of(const GroupingResult& result) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& order : result.order_by_segment)
    for (const int64_t token : order)
      for (int byte = 0; byte < 8; ++byte)
        hash = (hash ^ static_cast<uint8_t>(static_cast<uint64_t>(token) >> (8 * byte))) *
               0x100000001b3u;
  return hash;
}

struct Golden {
  Grouping kind;
  int head_dim;
  uint64_t cold;
  uint64_t warm;  // after the same head with a little noise
};

constexpr Golden kGoldens[] = {
    {Grouping::cubes, 128, 0x87de5391041aa94c, 0x87de5391041aa94c},
    {Grouping::kmeans, 128, 0x02fc5a73134f63e0, 0x3712c846a8b785cc},
    {Grouping::kdtree, 128, 0x3b7c4d19b1713b10, 0x883c0b9412ea1088},
    {Grouping::vsmooth, 128, 0x066f4ef049de7030, 0x0cc985e9d4849f24},
    {Grouping::balanced, 128, 0xed18c23eebfc711c, 0x32423060d990ba4c},
    {Grouping::kdtree, 72, 0x9b7f5f69e5711360, 0x9ea92797b1e287b8},
    {Grouping::vsmooth, 72, 0xa730ff94fe903074, 0xc8458bf2526367bc},
    {Grouping::kdtree, 64, 0x2bbae87cacada430, 0x9add408c4e2fbb70},
    {Grouping::vsmooth, 64, 0x675afe8dc306e7e4, 0xb6c981b8a6951c54},
    {Grouping::automatic, 33, 0xcb55c511d9704744, 0x090f04a675a747e8},
};

TEST(GroupingGolden, PermutationsAreTheSameEverywhere) {
  for (const Golden& golden : kGoldens) {
    test::Lcg random(77);
    test::Head head = test::clustered_head(random, 2300, golden.head_dim, 21, 0.6f);
    head.segments = {{0, 7 * 12 * 25, 0}, {2100, 200, 1}};
    head.valid.resize(2);
    head.valid[1].assign(head.valid[0].begin() + 2100, head.valid[0].end());
    head.valid[0].resize(2100);
    head.valid[0].erase(head.valid[0].begin() + 1000, head.valid[0].begin() + 1010);  // masked
    GroupingInput input = head.input();
    input.grid = {7, 12, 25};
    GroupingParams params;
    params.kind = golden.kind;
    const GroupingResult cold = group_head(input, params, nullptr);
    for (float& x : head.values) x += 0.25f * random.value();
    const GroupingResult warm = group_head(input, params, &cold.state);
    const std::string name =
        std::string(to_string(golden.kind)) + " " + std::to_string(golden.head_dim);
    char now[80];
    std::snprintf(now, sizeof now, "0x%016" PRIx64 ", 0x%016" PRIx64, hash_of(cold), hash_of(warm));
    EXPECT_TRUE(hash_of(cold) == golden.cold && hash_of(warm) == golden.warm)
        << name << " is now " << now;
  }
}

}  // namespace
}  // namespace vca::spec
