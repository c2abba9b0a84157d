// SPDX-License-Identifier: Apache-2.0
// Every instruction-set unit gives the bits of spec::attention_rows(Target::cpu), for every recipe.
#include "tests/core/support.hpp"

namespace vca::test {
namespace {

std::vector<int32_t> code_recipes() {
  std::vector<int32_t> ids;
  for (const spec::Recipe& r : spec::kRecipes)
    if (r.id != spec::RecipeId::exact) ids.push_back(static_cast<int32_t>(r.id));
  return ids;
}

// Runs the call on every unit and compares O and LSE with the specification.
void check_all_units(Call& c, const std::string& what) {
  c.with_lse();
  const SpecAnswer want = specification(c);
  for (const std::string& isa : usable_isas()) {
    const ForcedIsa forced(isa);
    std::fill(c.o.bytes().begin(), c.o.bytes().end(), uint8_t{0x7F});
    std::fill(c.lse.begin(), c.lse.end(), 777.0f);
    expect_ok(c.run());
    expect_bits(c, want, what + " on " + isa);
  }
}

class EveryRecipe : public testing::TestWithParam<int32_t> {
 protected:
  void check(const std::string& problem) {
    Call c(problem.c_str());
    c.desc.recipe = GetParam();
    c.output(VCA_FP32);
    check_all_units(c, name() + " on " + problem);
  }
  std::string name() const { return vca_recipe_str(GetParam()); }
};

TEST_P(EveryRecipe, SequenceLengths) {
  for (const char* s : {"1", "63", "65", "127", "128", "129", "300"})
    check(std::string("b1 hq1 hkv1 sq") + s + " skv" + s + " d64 bf16");
}

TEST_P(EveryRecipe, HeadDims) {
  for (const char* d : {"1", "7", "40", "80", "128"})
    check(std::string("b1 hq1 hkv1 sq70 skv200 d") + d + " bf16");
}

// More than one group of eight blocks (8 + 2 and a tail of 5 keys): means are restored more than
// once, the last time in an incomplete group.
TEST_P(EveryRecipe, ManyBlocks) { check("b1 hq1 hkv1 sq66 skv1285 d64 bf16"); }

TEST_P(EveryRecipe, GroupedQueriesAndBatches) { check("b2 hq6 hkv2 sq33 skv150 d64 fp16 nhd"); }

TEST_P(EveryRecipe, KeyLengths) { check("b2 hq2 hkv1 sq40 skv300 d64 bf16 len171"); }

// Scores that jump by hundreds of codes from block to block: alpha and w far below 1, down to 0.
TEST_P(EveryRecipe, LargeScores) {
  Call c({1, 1, 1, 64, 700, 64}, VCA_FP32);
  c.desc.recipe = GetParam();
  c.q.fill_normal(5, 12.0f);
  c.k.fill_normal(6, 12.0f);
  check_all_units(c, name() + " with large scores");
}

TEST_P(EveryRecipe, HadamardAndNegativeScale) {
  Call c({1, 1, 1, 65, 190, 80});
  c.desc.recipe = GetParam();
  c.desc.hadamard = 1;
  c.desc.has_scale = 1;
  c.desc.scale = -0.2;
  check_all_units(c, name() + " rotated, scale < 0");
}

TEST_P(EveryRecipe, ScaleZeroAndZeroInputs) {
  Call c({1, 1, 1, 20, 140, 64});
  c.desc.recipe = GetParam();
  c.desc.has_scale = 1;
  c.desc.scale = 0.0;
  check_all_units(c, name() + " scale 0");
  Call zero({1, 1, 1, 20, 140, 64});
  zero.desc.recipe = GetParam();
  const auto nothing = [](int64_t, int64_t, int64_t, int64_t) { return 0.0f; };
  zero.q.fill(nothing);
  zero.k.fill(nothing);
  zero.v.fill(nothing);
  check_all_units(zero, name() + " all zero");
}

TEST_P(EveryRecipe, MasksLengthsAndSegments) {
  Call c({2, 2, 1, 40, 500, 64});
  c.desc.recipe = GetParam();
  const std::vector<int32_t> lens = {500, 411};
  std::vector<uint8_t> mask(1000);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 7 != 3;
  const std::vector<vca_segment> segments = {{0, 333, VCA_SEGMENT_VIDEO, 0},
                                             {333, 100, VCA_SEGMENT_TEXT, 0},
                                             {433, 67, VCA_SEGMENT_PADDING, 0}};
  c.desc.kv_lens = lens.data();
  c.desc.key_mask = mask.data();
  c.desc.segments = segments.data();
  c.desc.n_segments = 3;
  check_all_units(c, name() + " masked");
}

TEST_P(EveryRecipe, RaggedBatch) {
  Call c({1, 2, 2, 400, 400, 64});
  c.desc.recipe = GetParam();
  const std::vector<vca_segment> segments = {{0, 130, VCA_SEGMENT_SEQUENCE, 0},
                                             {130, 0, VCA_SEGMENT_SEQUENCE, 0},
                                             {130, 1, VCA_SEGMENT_SEQUENCE, 0},
                                             {131, 250, VCA_SEGMENT_SEQUENCE, 0},
                                             {381, 19, VCA_SEGMENT_PADDING, 0}};
  c.desc.segments = segments.data();
  c.desc.n_segments = static_cast<int64_t>(segments.size());
  check_all_units(c, name() + " ragged");
}

TEST_P(EveryRecipe, RopeInsideTheCall) {
  Call c({1, 1, 1, 130, 130, 64});
  c.desc.recipe = GetParam();
  vca_rope rope{};
  rope.struct_size = sizeof(rope);
  rope.convention = VCA_ROPE_INTERLEAVED;
  const int32_t axes[3] = {20, 22, 22};
  std::copy_n(axes, 3, rope.axis_dim);
  rope.theta = 10000;
  const int64_t grid[3] = {4, 4, 8};
  std::copy_n(grid, 3, rope.grid);
  c.desc.rope = &rope;
  check_all_units(c, name() + " rope");
}

INSTANTIATE_TEST_SUITE_P(All, EveryRecipe, testing::ValuesIn(code_recipes()),
                         [](const testing::TestParamInfo<int32_t>& info) {
                           std::string name = vca_recipe_str(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The shapes above never fill all 64 lanes of a tile with different work at d = 128; the main case
// does.
TEST(Bitwise, OneLongHeadOfEachOrder) {
  for (const int32_t recipe : {VCA_RECIPE_VC8, VCA_RECIPE_VC8_TURBO, VCA_RECIPE_SAGE2}) {
    Call c({1, 1, 1, 192, 1100, 128});
    c.desc.recipe = recipe;
    check_all_units(c, std::string(vca_recipe_str(recipe)) + " 1100 x 128");
  }
}

TEST(Bitwise, OutputTypesRoundToNearestEven) {
  for (const int32_t dtype : {VCA_BF16, VCA_FP16, VCA_FP32}) {
    Call c({1, 2, 2, 30, 140, 64}, VCA_BF16);
    c.output(dtype, Layout::nhd);
    check_all_units(c, "output type");
  }
}

TEST(Bitwise, ThreadCountsDoNotMatter) {
  Call c({1, 3, 3, 150, 300, 64});
  c.with_lse();
  c.desc.num_threads = 1;
  expect_ok(c.run());
  const std::vector<uint8_t> one = c.o.bytes();
  const std::vector<float> lse = c.lse;
  for (const int threads : {2, 3, 8}) {
    c.desc.num_threads = threads;
    std::fill(c.o.bytes().begin(), c.o.bytes().end(), uint8_t{0});
    expect_ok(c.run());
    EXPECT_EQ(c.o.bytes(), one) << threads << " threads";
    EXPECT_EQ(c.lse, lse) << threads << " threads";
  }
}

}  // namespace
}  // namespace vca::test
