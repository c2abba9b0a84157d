// SPDX-License-Identifier: Apache-2.0
// The network's operations on a tile of token rows. A tile stays in cache from the norm that opens
// a half block to the residual that closes it, and BLAS runs one thread per tile, so that results
// do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "examples/tiny_video_dit/config.hpp"
#include "examples/tiny_video_dit/weights.hpp"

namespace tiny_video_dit {

// y[rows][out] = x[rows][in] W^T; the bias is left to the loop that reads y next.
void matmul(const Linear& layer, int64_t rows, const float* x, float* y);

// y = W x + b for one vector.
std::vector<float> matvec(const Linear& layer, std::span<const float> x);

void silu(std::span<float> x);

// y = LayerNorm(x) * (1 + scale) + shift, per row.
void norm_modulate(int64_t rows, int dim, double eps, const float* x, const float* shift,
                   const float* scale, float* y);

// x = GELU_tanh(x + bias), per row.
void bias_gelu(int64_t rows, int dim, const float* bias, float* x);

// z += gate * (y + bias), per row.
void gated_residual(int64_t rows, int dim, const float* gate, const float* bias, const float* y,
                    float* z);

uint16_t to_bf16(float x);  // round to nearest even; finite inputs

// Cosines and sines of the three axes, one row per position (MODEL.md section 5).
class RopeTables {
 public:
  RopeTables(const ModelConfig& config, const Grid& grid);

  // Rotates the head_dim channels of token n in place.
  void rotate(int64_t token, float* x) const;

 private:
  struct Axis {
    int pairs = 0;
    std::vector<float> cos;
    std::vector<float> sin;
  };
  Grid grid_;
  Axis axes_[3];
};

// x = RMSNorm(x) * weight over one head.
void rms_norm(int dim, double eps, const float* weight, float* x);

}  // namespace tiny_video_dit
