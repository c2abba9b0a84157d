// SPDX-License-Identifier: Apache-2.0
// The network of MODEL.md section 4. Attention is a callback, so the same code runs every recipe
// and can hand its operands to whoever wants to look at them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "examples/tiny_video_dit/config.hpp"
#include "examples/tiny_video_dit/layers.hpp"
#include "examples/tiny_video_dit/weights.hpp"

namespace tiny_video_dit {

enum class Operands {
  kBf16,  // what the large models hand to attention, and what the command uses
  kFp32,
};

// q, k and v of one layer after QK norm and RoPE, each [heads][tokens][head_dim] without gaps.
struct AttentionCall {
  int layer = 0;
  int heads = 0;
  int head_dim = 0;
  Grid grid;
  Operands operands = Operands::kBf16;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  float* o = nullptr;  // [tokens][heads][head_dim], to be filled
};

using AttentionFn = std::function<void(const AttentionCall&)>;

// Optional view of the inside, for tests.
struct ForwardTrace {
  std::vector<float> cond;            // [D], before silu
  std::vector<float> block_mean_abs;  // [L + 1]: after the embedding and after each block
  std::vector<float> z_final;         // [N][D]
};

class Dit {
 public:
  Dit(ModelConfig config, Weights weights);

  const ModelConfig& config() const { return config_; }

  // x0[N][P] = the clean clip predicted from x[N][P] at time t for a class (null_class() for none).
  // Scratch memory is kept between calls: one forward at a time per object.
  void forward(const Grid& grid, std::span<const float> x, float t, int class_index,
               Operands operands, const AttentionFn& attention, int threads, std::span<float> x0,
               ForwardTrace* trace = nullptr);

 private:
  std::vector<float> condition(float t, int class_index) const;
  void embed(std::span<const float> x, int threads);
  void before_attention(const Block& block, const float* mod, Operands operands, int threads);
  void after_attention(const Block& block, const float* mod, int threads);
  void head(const float* mod, int threads, std::span<float> x0);
  void set_grid(const Grid& grid);

  ModelConfig config_;
  Weights weights_;
  Grid grid_;
  std::vector<RopeTables> rope_;  // empty or one, for grid_
  std::vector<float> z_;          // [N][D]
  std::vector<float> o_;          // [N][heads][head_dim]
  std::vector<float> qkv_fp32_;   // three of [heads][N][head_dim]
  std::vector<uint16_t> qkv_bf16_;
};

}  // namespace tiny_video_dit
