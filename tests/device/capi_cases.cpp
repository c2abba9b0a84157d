// SPDX-License-Identifier: Apache-2.0
// The C ABI on device tensors, one call a case: O of sampled rows against vca_ref_attn with target
// sm90 and token order, bit for bit in the output type; LSE within its rounding; outputs and
// workspace poisoned; nothing but rows of o written, inputs and everything around them unchanged.
#include <gtest/gtest.h>

#include "device/capi_compare.hpp"

namespace vca::tests {
namespace {

constexpr int32_t kRecipes[6] = {VCA_RECIPE_VC8,     VCA_RECIPE_VC8_TURBO, VCA_RECIPE_VC8_PAPER,
                                 VCA_RECIPE_VC8_EXP, VCA_RECIPE_SAGE2,     VCA_RECIPE_FP8};

void add_head_dims(std::vector<Case>& out) {
  int32_t turn = 0;
  for (const int32_t recipe : kRecipes)
    for (const int d : {128, 64, 80, 1}) {
      const int32_t type = turn++ % 3;
      Case c{.name = "cross, GQA", .recipe = recipe, .dtype = type, .o_dtype = (type + 1) % 3};
      c.b = 2, c.h_q = 4, c.h_kv = 2, c.s_q = 200, c.s_kv = 1301, c.d = d;
      out.push_back(c);
    }
}

void add_strides(std::vector<Case>& out) {
  const char* const names[5] = {"HND", "NHD", "fused QKV", "batch stride 0", "head stride 0"};
  for (int i = 0; i < 5; ++i)
    for (const int32_t recipe : kRecipes) {
      const int32_t type = (recipe + i) % 3;
      Case c{.name = names[i], .recipe = recipe, .dtype = type, .o_dtype = type};
      c.b = 2, c.h_q = c.h_kv = 3, c.s_q = c.s_kv = 150, c.d = 72;
      c.memory = static_cast<Memory>(i);
      out.push_back(c);
    }
  // Rows of o at addresses that no store of two or four elements may assume anything about.
  for (const int32_t type : {VCA_BF16, VCA_FP16, VCA_FP32})
    for (const int64_t gap : {1, 3}) {
      Case c{.name = "odd rows of o", .dtype = type, .o_dtype = type};
      c.h_q = c.h_kv = 2, c.s_q = 70, c.s_kv = 200, c.d = 128;
      c.o_gap = gap, c.o_offset = type == VCA_FP32 ? 1 : 2 * gap;
      out.push_back(c);
      c.memory = Memory::nhd, c.d = 7;
      out.push_back(c);
    }
  Case c{.name = "fused QKV, token stride 21504", .memory = Memory::fused_qkv};
  c.h_q = c.h_kv = 56, c.s_q = c.s_kv = 300;
  out.push_back(c);
}

// Without a group state: a new order every call.
void add_groupings(std::vector<Case>& out) {
  for (const int32_t grouping :
       {VCA_GROUPING_AUTO, VCA_GROUPING_VSMOOTH, VCA_GROUPING_KDTREE, VCA_GROUPING_KMEANS}) {
    Case c{.name = "grouped", .energy = true};
    c.b = 2, c.h_q = 4, c.h_kv = 2, c.s_q = 130, c.s_kv = 700;
    c.grouping = grouping;
    out.push_back(c);
    c.name = "grouped, text, padding, lengths, mask", c.recipe = VCA_RECIPE_VC8_PAPER, c.d = 64;
    c.lens = c.mask = true, c.split = Split::text_and_padding, c.s_kv = 1500;
    out.push_back(c);
  }
  Case c{.name = "cubes", .energy = true};
  c.b = 2, c.h_q = 4, c.h_kv = 2, c.s_q = 130, c.s_kv = 700;
  c.grouping = VCA_GROUPING_CUBES;
  out.push_back(c);
  c.name = "cubes, text, padding, lengths, mask", c.lens = c.mask = true;
  c.split = Split::text_and_padding, c.s_kv = 1500;
  out.push_back(c);
}

void add_masks(std::vector<Case>& out) {
  for (const int32_t recipe : kRecipes) {
    Case c{.name = "key lengths", .recipe = recipe, .lens = true, .energy = true};
    c.b = 3, c.h_q = 2, c.h_kv = 1, c.s_q = 300, c.s_kv = 2500;
    out.push_back(c);
    c.name = "key mask", c.lens = false, c.mask = true;
    out.push_back(c);
    c.name = "text, padding, lengths, mask", c.lens = true, c.split = Split::text_and_padding;
    out.push_back(c);
    c.name = "sequences", c.lens = c.energy = false, c.split = Split::sequences;
    c.s_q = c.s_kv = 1000;
    out.push_back(c);
    c.name = "RoPE by grid, no LSE", c.split = Split::one, c.rope = RopeKind::grid, c.lse = false;
    out.push_back(c);
    c.name = "RoPE by tables", c.rope = RopeKind::tables, c.lse = true, c.d = 96;
    out.push_back(c);
  }
}

// FP32 row sums mask the pads of every tail block, so these have tails everywhere.
void add_real_exponentials(std::vector<Case>& out) {
  const std::pair<const char*, int32_t> recipes[] = {
      {"vc8-exp", VCA_RECIPE_VC8_EXP}, {"sage2", VCA_RECIPE_SAGE2}, {"fp8", VCA_RECIPE_FP8}};
  for (const auto& [name, recipe] : recipes) {
    Case c{.name = name, .recipe = recipe, .lens = true, .mask = true, .energy = true};
    c.split = Split::text_and_padding;
    c.b = 2, c.h_q = 4, c.h_kv = 2, c.s_q = c.s_kv = 700, c.d = 96;
    out.push_back(c);
  }
}

void add_sizes(std::vector<Case>& out) {
  for (const int64_t s : {1, 127, 128, 129, 1025}) {
    Case c{.name = "length", .recipe = kRecipes[s % 6], .energy = true};
    c.h_q = 8, c.h_kv = 1, c.s_q = c.s_kv = s, c.d = 64;
    out.push_back(c);
  }
  Case c{.name = "negative scale", .scale = -0.11};
  c.h_q = c.h_kv = 2, c.s_q = c.s_kv = 257;
  out.push_back(c);
  c.name = "scale 1e6: scores beyond 2^23 code units", c.scale = 1e6;
  out.push_back(c);
  c.recipe = VCA_RECIPE_VC8_TURBO;
  out.push_back(c);
  c.recipe = VCA_RECIPE_VC8;
  c.name = "scale 0", c.scale = 0.0;
  out.push_back(c);
  c = {.name = "66,000 heads"};
  c.b = 300, c.h_q = c.h_kv = 220, c.s_q = 3, c.s_kv = 5, c.d = 16;
  out.push_back(c);
  c = {.name = "no keys", .energy = true};
  c.b = 2, c.h_q = c.h_kv = 2, c.s_q = 130, c.s_kv = 0;
  out.push_back(c);
  c.name = "no queries", c.s_q = 0, c.s_kv = 9;
  out.push_back(c);
  c.name = "no batch", c.b = 0, c.s_q = 5, c.energy = false;
  out.push_back(c);
}

// The same features on a few hundred products: each (name, output type) once, and small.
std::vector<Case> small_of(const std::vector<Case>& all) {
  std::vector<Case> out;
  for (Case c : all) {
    c.b = std::min<int64_t>(c.b, 3);
    c.h_kv = c.h_kv == c.h_q && c.h_q > 2 ? 2 : std::min<int64_t>(c.h_kv, 2);
    c.h_q = c.h_q > c.h_kv ? 2 * c.h_kv : c.h_kv;
    const bool self = c.s_q == c.s_kv;
    c.s_q = std::min<int64_t>(c.s_q, self ? 150 : 30);
    c.s_kv = std::min<int64_t>(c.s_kv, 150);
    const bool seen = std::any_of(out.begin(), out.end(), [&c](const Case& o) {
      return std::string(o.name) == c.name && o.d == c.d && o.o_gap == c.o_gap && o.s_q == c.s_q;
    });
    if (!seen) out.push_back(c);
  }
  return out;
}

std::vector<Case> cases() {
  std::vector<Case> out;
  add_head_dims(out);
  add_strides(out);
  add_groupings(out);
  add_masks(out);
  add_real_exponentials(out);
  add_sizes(out);
  return small_problems() ? small_of(out) : out;
}

// f and `regrouped` against the CPU backend, whose f is the specification's.
void expect_energy(const Problem& p) {
  const auto heads = static_cast<size_t>(p.c.b * p.c.h_kv);
  std::vector<float> want(heads);
  std::vector<uint8_t> want_regrouped(heads);
  std::vector<uint8_t> o(p.o_bytes());
  vca_attn_desc desc = p.host;
  desc.o.data = o.data();
  desc.energy_removed = want.data();
  desc.regrouped = want_regrouped.data();
  ASSERT_EQ(vca_attn_run(&desc, nullptr, 0, nullptr), VCA_OK) << vca_last_error();
  EXPECT_EQ(std::memcmp(p.energy->download().data(), want.data(), heads * 4), 0)
      << "energy_removed";
  EXPECT_EQ(p.regrouped->download(), want_regrouped);
  // Orders are formed of heads with keys only; of a mask that leaves few, some may have none.
  const auto h = static_cast<size_t>(p.c.h_kv);
  for (size_t i = 0; i < heads; ++i) {
    const bool keys = p.lens.empty() ? p.c.s_kv > 0 : p.lens[i / h] > 0;
    if (keys && !p.mask.empty()) continue;
    EXPECT_EQ(want_regrouped[i], keys && p.c.grouping != VCA_GROUPING_IDENTITY) << "head " << i;
  }
}

class DeviceCase : public testing::TestWithParam<Case> {};

TEST_P(DeviceCase, EqualsTheSpecification) {
  const Problem p(GetParam(), 1000 + static_cast<uint64_t>(GetParam().s_kv));
  const int before = current_device();
  ASSERT_EQ(status_text(p.run(nullptr)), "");
  wait_for_device();
  EXPECT_EQ(current_device(), before);
  const std::vector<uint8_t> o = p.o->download(), lse = p.lse->download();
  Comparison comparison(p, o, lse);
  EXPECT_EQ(comparison.run(), "");
  if (GetParam().energy) expect_energy(p);
}

INSTANTIATE_TEST_SUITE_P(CApi, DeviceCase, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = std::to_string(info.index) + "_" + info.param.name;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
});

}  // namespace
}  // namespace vca::tests
