// SPDX-License-Identifier: Apache-2.0
// Preprocessing cases for the host test and the device test: which tensors, which request.
// prep_problem.hpp makes them, prep_compare.hpp compares the outcome.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include "spec/operands.hpp"

namespace vca::tests {

enum class Memory {
  hnd,
  nhd,
  fused_qkv,       // one token's q, k and v heads in a row
  misaligned,      // rows of odd pitch from an odd element
  odd_address,     // not even aligned to its elements
  shared_heads,    // head stride 0
  shared_tokens,   // token stride 0
  shared_batches,  // batch stride 0
  far_apart,       // heads 2^31 + 64 elements apart
};
enum class RopeKind {
  none,
  interleaved,  // Wan2.2, LongCat-Video
  half,         // MiniMax-H3: 96 of 128 dims
  table_interleaved,
  table_half,
  hunyuan,   // HunyuanVideo-1.5
  head_64,   // axes of a head_dim of 64
  odd_axes,  // three axes in eight dims: no vector path
};
enum class Layout { one, with_text_and_padding, sequences };

struct PrepCase {
  const char* name;
  const char* recipe = "vc8";
  spec::DType dtype = spec::DType::bf16;
  int64_t b = 1, h_q = 1, h_kv = 1, s_q = 128, s_kv = 128;
  int d = 128;
  Memory memory = Memory::hnd;
  Layout layout = Layout::one;
  RopeKind rope = RopeKind::none;
  bool lens = false, mask = false, shuffled = false, lse = true;
  double scale = 0.0;  // 0: 1/sqrt(d)
  double magnitude = 1.0;
  double k_mean = 0.3, v_mean = 0.5;
  bool hadamard = false;   // also where the recipe has none
  bool nonfinite = false;  // in head 0, which is then not compared: others must not notice
};

// One line that no other case has; CTest takes it as the test's name.
inline std::string describe(const PrepCase& c) {
  char text[240];
  std::snprintf(text, sizeof text,
                "%s: %s dtype%d b%lld h%lld/%lld s%lld/%lld d%d memory%d layout%d rope%d%s%s%s%s%s",
                c.name, c.recipe, static_cast<int>(c.dtype), static_cast<long long>(c.b),
                static_cast<long long>(c.h_q), static_cast<long long>(c.h_kv),
                static_cast<long long>(c.s_q), static_cast<long long>(c.s_kv), c.d,
                static_cast<int>(c.memory), static_cast<int>(c.layout), static_cast<int>(c.rope),
                c.lens ? " lens" : "", c.mask ? " mask" : "", c.shuffled ? " shuffled" : "",
                c.lse ? "" : " no lse", c.nonfinite ? " non-finite" : "");
  std::string out = text;
  if (c.scale != 0.0 || std::signbit(c.scale)) out += " scale " + std::to_string(c.scale);
  if (c.hadamard) out += " hadamard";
  if (c.magnitude != 1.0) out += " x 2^" + std::to_string(std::ilogb(c.magnitude));
  return out;
}
inline void PrintTo(const PrepCase& c, std::ostream* out) { *out << describe(c); }

inline std::vector<PrepCase> prep_cases() {
  using spec::DType;
  std::vector<PrepCase> c;
  const auto add = [&c](PrepCase x, auto... change) {
    (change(x), ...);
    c.push_back(x);
  };
  for (const char* recipe : {"vc8", "vc8-turbo", "vc8-paper", "vc8-exp", "sage2", "fp8"})
    for (const int d : {128, 64, 80, 1}) {
      add({.name = "one tile", .recipe = recipe, .d = d});
      add({.name = "ragged, GQA",
           .recipe = recipe,
           .dtype = DType::fp16,
           .b = 2,
           .h_q = 4,
           .h_kv = 2,
           .s_q = 200,
           .s_kv = 1301,
           .d = d,
           .shuffled = true});
    }
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32})
    for (const Memory memory :
         {Memory::nhd, Memory::fused_qkv, Memory::misaligned, Memory::odd_address,
          Memory::shared_heads, Memory::shared_tokens, Memory::shared_batches})
      add({.name = "strides",
           .dtype = dtype,
           .b = 2,
           .h_q = 3,
           .h_kv = 3,
           .s_q = 150,
           .s_kv = 150,
           .d = 72,
           .memory = memory});
  for (const int64_t s : {1, 2, 3, 5, 9, 15, 17, 127, 129, 1023, 1025, 1153})
    add({.name = "length", .h_q = 2, .h_kv = 1, .s_q = s, .s_kv = s, .d = 64, .shuffled = true});
  for (const Layout layout : {Layout::one, Layout::with_text_and_padding, Layout::sequences})
    for (const bool shuffled : {false, true}) {
      const PrepCase base = {.name = "segments",
                             .b = 3,
                             .h_q = 2,
                             .h_kv = 1,
                             .s_q = 1500,
                             .s_kv = 1500,
                             .d = 64,
                             .layout = layout,
                             .shuffled = shuffled};
      add(base);
      add(base, [](PrepCase& x) { x.lens = true; });
      add(base, [](PrepCase& x) { x.mask = true; });
      add(base, [](PrepCase& x) { x.lens = x.mask = true; });
    }
  for (const RopeKind rope :
       {RopeKind::interleaved, RopeKind::half, RopeKind::table_interleaved, RopeKind::table_half})
    for (const char* recipe : {"vc8", "vc8-paper", "sage2", "fp8"})
      add({.name = "rope",
           .recipe = recipe,
           .h_q = 2,
           .h_kv = 2,
           .s_q = 300,
           .s_kv = 300,
           .layout = Layout::with_text_and_padding,
           .rope = rope,
           .mask = true});
  for (const RopeKind rope : {RopeKind::hunyuan, RopeKind::odd_axes})
    add({.name = "rope of a model", .h_q = 2, .s_q = 300, .s_kv = 300, .rope = rope});
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32})
    for (const RopeKind rope : {RopeKind::interleaved, RopeKind::half, RopeKind::table_half})
      for (const Memory memory : {Memory::fused_qkv, Memory::misaligned})
        add({.name = "rope, types and strides",
             .recipe = "vc8-paper",
             .dtype = dtype,
             .h_q = 2,
             .h_kv = 2,
             .s_q = 300,
             .s_kv = 300,
             .memory = memory,
             .rope = rope,
             .shuffled = true});
  add({.name = "rope, 64", .s_q = 300, .s_kv = 300, .d = 64, .rope = RopeKind::head_64});
  for (const double scale : {-0.088, 1e-30, 3.0, -0.0})
    add({.name = "scale", .s_q = 130, .s_kv = 260, .d = 128, .scale = scale});
  add({.name = "negative scale, Hadamard", .recipe = "vc8-paper", .s_q = 130, .scale = -0.1});
  add({.name = "no lse", .s_q = 130, .lse = false});
  for (const char* recipe : {"sage2", "fp8"}) {
    add({.name = "Hadamard",
         .recipe = recipe,
         .h_q = 2,
         .s_q = 130,
         .s_kv = 300,
         .d = 80,
         .scale = -0.1,
         .hadamard = true});
    // Every length of a rank group's tree, and sub-problems without keys.
    for (const int64_t s : {1, 17, 1023, 1024, 1025, 2100})
      add({.name = "length", .recipe = recipe, .s_q = s, .s_kv = s, .d = 64, .shuffled = true});
    add({.name = "segments",
         .recipe = recipe,
         .b = 3,
         .h_q = 4,
         .h_kv = 2,
         .s_q = 1500,
         .s_kv = 1500,
         .d = 64,
         .layout = Layout::sequences,
         .lens = true,
         .mask = true});
    add({.name = "zeros", .recipe = recipe, .s_kv = 300, .magnitude = 0.0, .k_mean = 0.0});
    add({.name = "no keys", .recipe = recipe, .s_q = 130, .s_kv = 0});
  }
  for (const char* recipe : {"vc8", "sage2", "fp8"})
    for (const double magnitude : {1e-33, 1e4, 1e12, 1e30})
      add({.name = "magnitude",
           .recipe = recipe,
           .dtype = DType::fp32,
           .h_q = 2,
           .h_kv = 2,
           .s_q = 130,
           .s_kv = 300,
           .d = 64,
           .magnitude = magnitude});
  add({.name = "zeros", .s_q = 130, .s_kv = 300, .magnitude = 0.0, .k_mean = 0.0, .v_mean = 0.0});
  add({.name = "no keys", .h_q = 2, .h_kv = 2, .s_q = 130, .s_kv = 0});
  add({.name = "no queries", .h_q = 2, .h_kv = 2, .s_q = 0, .s_kv = 130});
  add({.name = "cross attention", .h_q = 2, .h_kv = 2, .s_q = 300, .s_kv = 77, .lens = true});
  // More chunks than the layout pass has threads, more rank groups than a tree has leaves.
  add({.name = "long", .s_q = 3, .s_kv = 140000, .d = 1, .mask = true});
  add({.name = "non-finite",
       .dtype = DType::fp32,
       .h_q = 4,
       .h_kv = 2,
       .s_q = 130,
       .s_kv = 300,
       .nonfinite = true});
  add({.name = "2^31 elements",
       .h_q = 2,
       .h_kv = 2,
       .s_q = 130,
       .s_kv = 140,
       .d = 64,
       .memory = Memory::far_apart});
  return c;
}

}  // namespace vca::tests
