// SPDX-License-Identifier: Apache-2.0
// Threads inside a call and callers beside each other. Alone a test of results; built with
// ThreadSanitizer (scripts/races_and_leaks.sh) a test of memory as well.
#include <string>
#include <thread>
#include <vector>

#include "tests/core/support.hpp"

namespace vca::test {
namespace {

// Two batches of grouped-query heads, several tiles and blocks with tails in each.
constexpr Shape kShape{2, 4, 2, 150, 290, 64};
constexpr int64_t kMaskBytes = 2 * 4 * 2 * 3;

std::vector<uint8_t> half_of_the_blocks() {
  std::vector<uint8_t> mask(kMaskBytes);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i * 7 % 5 < 3;
  return mask;
}

TEST(Threads, FourGiveTheBitsOfOneWithEveryRecipe) {
  const std::vector<uint8_t> mask = half_of_the_blocks();
  for (const spec::Recipe& r : spec::kRecipes)
    for (const uint8_t* blocks : {static_cast<const uint8_t*>(nullptr), mask.data()}) {
      if (r.id == spec::RecipeId::exact && blocks != nullptr) continue;
      Call one(kShape);
      one.desc.recipe = static_cast<int32_t>(r.id);
      one.desc.block_mask = blocks;
      one.desc.num_threads = 1;
      one.with_lse();
      expect_ok(one.run());
      Call four(kShape);
      four.desc.recipe = one.desc.recipe;
      four.desc.block_mask = blocks;
      four.desc.num_threads = 4;
      four.with_lse();
      expect_ok(four.run());
      EXPECT_EQ(four.o.bytes(), one.o.bytes()) << r.name;
      EXPECT_EQ(four.lse, one.lse) << r.name;
    }
}

// Three callers share the inputs; each has a team, an output and a group state of its own.
TEST(Threads, CallersAtOnceWithTeamsAndStatesOfTheirOwn) {
  Call inputs(kShape);
  for (const int32_t recipe : {VCA_RECIPE_VC8, VCA_RECIPE_VC4}) {
    Call want(kShape);
    want.desc.recipe = recipe;
    want.desc.num_threads = 1;
    expect_ok(want.run());
    int wrong[3] = {};
    const auto caller = [&](int* bad) {
      Call mine(kShape);
      vca_attn_desc d = inputs.desc;
      d.o = mine.desc.o;
      d.recipe = recipe;
      d.num_threads = 2;
      size_t bytes = 0;
      *bad += vca_group_state_bytes(&d, &bytes) != VCA_OK;
      std::vector<uint64_t> state((bytes + 7) / 8);
      *bad += vca_group_state_init(&d, state.data(), bytes, nullptr) != VCA_OK;
      int32_t step = 0;
      d.state = state.data();
      d.step = &step;
      for (; step < 3; ++step) {
        *bad += vca_attn_run(&d, nullptr, 0, nullptr) != VCA_OK;
        *bad += mine.o.bytes() != want.o.bytes();
      }
    };
    std::thread second(caller, &wrong[1]), third(caller, &wrong[2]);
    caller(&wrong[0]);
    second.join();
    third.join();
    for (const int bad : wrong) EXPECT_EQ(bad, 0) << vca_recipe_str(recipe);
  }
}

}  // namespace
}  // namespace vca::test
