// SPDX-License-Identifier: Apache-2.0
// The recipes of docs/numerics.md, section E, as data. Every backend and every tool reads this
// table; nothing else in the project knows what "vc8" means.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "spec/grouping/grouping.hpp"

namespace vca::spec {

// Version of the numerics; part of the API and of every golden file. Raised by a decision record
// only.
inline constexpr int32_t kSpecVersion = 5;

inline constexpr int kBlock = 128;      // keys of a block, rows of a value mean
inline constexpr int kGroupBlocks = 8;  // blocks between two mean restores (indicator columns)
inline constexpr int kMaxHeadDim = 128;

// Numbers equal vca_recipe in vca.h (a test compares them).
enum class RecipeId : int32_t {
  exact = 1,
  bf16 = 2,
  fp8 = 3,
  sage2 = 4,
  vc8_paper = 5,
  vc8_exp = 6,
  vc8 = 7,
  vc8_turbo = 8,
  vc8_hq = 9,
  vc8_fp8qk = 10,
  vc8_fp8qk_paper = 11,
  fp4 = 12,
  sage3 = 13,
  vc4_paper = 14,
  vc4 = 15,
  vc4_int8qk = 16,
};

enum class QkFormat : uint8_t { fp64, bf16, e4m3_head, int8, e4m3_group, nvfp4 };
enum class PMap : uint8_t {
  fp64,          // real exponential, FP64
  fp32,          // real exponential, kept in FP32
  cast_e4m3,     // real exponential, cast to E4M3
  cast_u8,       // real exponential, rounded to 0..255
  expcast,       // E4M3 code straight from the score
  nvfp4,         // real exponential, NVFP4 along the keys, elements divided by the micro-scale
  nvfp4_folded,  // the same with the micro-scale taken out in the exponent
  expcast4,      // NVFP4 straight from the score: measured and rejected (docs/decisions/0008)
};
enum class Reference : uint8_t { running_max, block_max };
enum class VFormat : uint8_t {
  fp64,
  bf16,
  e4m3_channel,
  e4m3_smooth,
  int8_smooth,
  nvfp4,
  nvfp4_smooth,
};
// How blocks add up: the L2 orders of attention.hpp.
enum class Flow : uint8_t { plain, local, running, means };

struct Recipe {
  RecipeId id;
  std::string_view name;
  QkFormat qk;
  bool k_mean;
  bool k_mean_all_rows;  // else every 16th valid row
  bool hadamard;
  PMap p;
  float top;  // code units added to t - m: the value of the row (or block) maximum
  Reference reference;
  VFormat v;
  Grouping grouping;
  bool reuse_after_window;  // the published policy
  bool q_mean = false;      // the mean of every 128 query rows is taken out and comes back as dS
  bool micro_of_three = false;  // NVFP4 micro-scale by least error among amax/6, amax/5, amax/4

  constexpr bool integer_scores() const { return qk == QkFormat::int8; }
  constexpr bool v_smooth() const {
    return v == VFormat::e4m3_smooth || v == VFormat::int8_smooth || v == VFormat::nvfp4_smooth;
  }
  constexpr bool fp4_v() const { return v == VFormat::nvfp4 || v == VFormat::nvfp4_smooth; }
  constexpr bool fp4_p() const {
    return p == PMap::nvfp4 || p == PMap::nvfp4_folded || p == PMap::expcast4;
  }
  // Any operand in NVFP4: only some chips multiply it.
  constexpr bool four_bit() const { return qk == QkFormat::nvfp4 || fp4_v(); }
  constexpr Flow flow() const {
    if (!v_smooth()) return Flow::plain;
    if (v == VFormat::nvfp4_smooth) return Flow::means;
    return reference == Reference::block_max ? Flow::local : Flow::running;
  }
  // Dots that the code line takes as FP32 without a conversion (E2).
  constexpr bool offset_scores() const { return p == PMap::expcast && integer_scores(); }
  // l and r come from one source: decoded codes (true) or FP32 exponentials (false).
  constexpr bool decoded_sums() const { return p == PMap::expcast; }
  constexpr bool quantised() const { return id != RecipeId::exact && id != RecipeId::bf16; }
  // P has 8-bit codes.
  constexpr bool has_codes() const {
    return p == PMap::expcast || p == PMap::cast_e4m3 || p == PMap::cast_u8;
  }
};

// RN(8 log2 448) and RN(8 log2 255): the row maximum lands on the largest code of the cast.
inline constexpr float kTopE4m3 = 70.4588399f;
inline constexpr float kTopU8 = 63.9548378f;
inline constexpr float kTopExpCast = 126.0f;
inline constexpr float kTopPaper = 119.65f;  // 120 with the published beta of -0.35
// RN(8 log2 2688): the row maximum lands on the largest NVFP4 value, 6 * 448 ("two-level").
inline constexpr float kTopNvfp4 = 91.1385422f;

inline constexpr std::array<Recipe, 16> kRecipes = {{
    {RecipeId::exact, "exact", QkFormat::fp64, false, false, false, PMap::fp64, 0.0f,
     Reference::running_max, VFormat::fp64, Grouping::identity, false},
    {RecipeId::bf16, "bf16", QkFormat::bf16, false, false, false, PMap::fp32, 0.0f,
     Reference::running_max, VFormat::bf16, Grouping::identity, false},
    {RecipeId::fp8, "fp8", QkFormat::e4m3_head, false, false, false, PMap::cast_e4m3, kTopE4m3,
     Reference::running_max, VFormat::e4m3_channel, Grouping::identity, false},
    {RecipeId::sage2, "sage2", QkFormat::int8, true, true, false, PMap::cast_e4m3, kTopE4m3,
     Reference::running_max, VFormat::e4m3_channel, Grouping::identity, false},
    {RecipeId::vc8_paper, "vc8-paper", QkFormat::int8, true, false, true, PMap::expcast, kTopPaper,
     Reference::running_max, VFormat::e4m3_smooth, Grouping::kmeans, true},
    {RecipeId::vc8_exp, "vc8-exp", QkFormat::int8, true, false, false, PMap::cast_e4m3, kTopE4m3,
     Reference::running_max, VFormat::e4m3_smooth, Grouping::automatic, false},
    {RecipeId::vc8, "vc8", QkFormat::int8, true, false, false, PMap::expcast, kTopExpCast,
     Reference::block_max, VFormat::e4m3_smooth, Grouping::automatic, false},
    {RecipeId::vc8_turbo, "vc8-turbo", QkFormat::int8, true, false, false, PMap::expcast,
     kTopExpCast, Reference::running_max, VFormat::e4m3_smooth, Grouping::automatic, false},
    {RecipeId::vc8_hq, "vc8-hq", QkFormat::int8, true, false, false, PMap::cast_u8, kTopU8,
     Reference::block_max, VFormat::int8_smooth, Grouping::automatic, false},
    {RecipeId::vc8_fp8qk, "vc8-fp8qk", QkFormat::e4m3_group, true, false, false, PMap::expcast,
     kTopExpCast, Reference::block_max, VFormat::e4m3_smooth, Grouping::automatic, false},
    {RecipeId::vc8_fp8qk_paper, "vc8-fp8qk-paper", QkFormat::e4m3_group, true, false, true,
     PMap::expcast, kTopPaper, Reference::running_max, VFormat::e4m3_smooth, Grouping::kmeans,
     true},
    // One-level: the row maximum is 1, so its micro-scale is 1/6 and all else is smaller.
    {RecipeId::fp4, "fp4", QkFormat::nvfp4, false, false, false, PMap::nvfp4, 0.0f,
     Reference::running_max, VFormat::nvfp4, Grouping::identity, false},
    {RecipeId::sage3, "sage3", QkFormat::nvfp4, true, true, false, PMap::nvfp4, kTopNvfp4,
     Reference::running_max, VFormat::nvfp4, Grouping::identity, false, true},
    {RecipeId::vc4_paper, "vc4-paper", QkFormat::nvfp4, true, true, false, PMap::nvfp4, kTopNvfp4,
     Reference::running_max, VFormat::nvfp4_smooth, Grouping::kmeans, true, true},
    {RecipeId::vc4, "vc4", QkFormat::nvfp4, true, false, true, PMap::nvfp4_folded, kTopNvfp4,
     Reference::running_max, VFormat::nvfp4_smooth, Grouping::automatic, false, true, true},
    {RecipeId::vc4_int8qk, "vc4-int8qk", QkFormat::int8, true, false, false, PMap::nvfp4_folded,
     kTopNvfp4, Reference::running_max, VFormat::nvfp4_smooth, Grouping::automatic, false, false,
     true},
}};

constexpr const Recipe& recipe(RecipeId id) {
  return kRecipes[static_cast<size_t>(static_cast<int32_t>(id)) - 1];
}

// By name without suffix; nullptr when unknown.
constexpr const Recipe* find_recipe(std::string_view name) {
  for (const Recipe& r : kRecipes)
    if (r.name == name) return &r;
  return nullptr;
}

// The value of P that a score equal to the maximum stands for; l / p_of_maximum is sum exp(t - m)
// in LSE. For ExpCast 448 * 2^((top - 126)/8): decoding is unbiased over the mantissa phase at top
// 126 (docs/numerics.md, section E), so this is the value that makes diffuse rows unbiased for any
// top.
double p_of_maximum(const Recipe& r);

}  // namespace vca::spec
