// SPDX-License-Identifier: Apache-2.0
#include "examples/tiny_video_dit/layers.hpp"

#include <cblas.h>

#include <bit>
#include <cmath>
#include <numbers>

namespace tiny_video_dit {

void matmul(const Linear& layer, int64_t rows, const float* x, float* y) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(rows), layer.out, layer.in,
              1.0F, x, layer.in, layer.weight.data(), layer.in, 0.0F, y, layer.out);
}

std::vector<float> matvec(const Linear& layer, std::span<const float> x) {
  std::vector<float> y(layer.bias);
  for (int o = 0; o < layer.out; ++o) {
    const float* row = layer.weight.data() + int64_t{o} * layer.in;
    float sum = 0;
    for (int i = 0; i < layer.in; ++i) sum += row[i] * x[i];
    y[o] += sum;
  }
  return y;
}

void silu(std::span<float> x) {
  for (float& value : x) value = value / (1.0F + std::exp(-value));
}

void norm_modulate(int64_t rows, int dim, double eps, const float* x, const float* shift,
                   const float* scale, float* y) {
  const float inverse_dim = 1.0F / static_cast<float>(dim);
  for (int64_t r = 0; r < rows; ++r, x += dim, y += dim) {
    float sum = 0;
    for (int d = 0; d < dim; ++d) sum += x[d];
    const float mean = sum * inverse_dim;
    float squares = 0;
    for (int d = 0; d < dim; ++d) squares += (x[d] - mean) * (x[d] - mean);
    const float factor = 1.0F / std::sqrt(squares * inverse_dim + static_cast<float>(eps));
    for (int d = 0; d < dim; ++d) y[d] = (x[d] - mean) * factor * (1.0F + scale[d]) + shift[d];
  }
}

void bias_gelu(int64_t rows, int dim, const float* bias, float* x) {
  // 0.5 (1 + tanh(z)) = 1 / (1 + exp(-2 z)): one exponential and no cancellation.
  const float c1 = static_cast<float>(2.0 * std::sqrt(2.0 / std::numbers::pi));
  const float c3 = c1 * 0.044715F;
  for (int64_t r = 0; r < rows; ++r, x += dim) {
    for (int d = 0; d < dim; ++d) {
      const float a = x[d] + bias[d];
      x[d] = a / (1.0F + std::exp(-a * (c1 + c3 * a * a)));
    }
  }
}

void gated_residual(int64_t rows, int dim, const float* gate, const float* bias, const float* y,
                    float* z) {
  for (int64_t r = 0; r < rows; ++r, y += dim, z += dim) {
    for (int d = 0; d < dim; ++d) z[d] += gate[d] * (y[d] + bias[d]);
  }
}

uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

RopeTables::RopeTables(const ModelConfig& config, const Grid& grid) : grid_(grid) {
  const int extents[3] = {grid.t, grid.h, grid.w};
  for (int a = 0; a < 3; ++a) {
    const int channels = config.rope_split[a];
    Axis& axis = axes_[a];
    axis.pairs = channels / 2;
    for (int position = 0; position < extents[a]; ++position) {
      for (int j = 0; j < axis.pairs; ++j) {
        const double angle = position * std::pow(config.rope_theta, -2.0 * j / channels);
        axis.cos.push_back(static_cast<float>(std::cos(angle)));
        axis.sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
}

void RopeTables::rotate(int64_t token, float* x) const {
  const int64_t positions[3] = {token / (int64_t{grid_.h} * grid_.w), (token / grid_.w) % grid_.h,
                                token % grid_.w};
  for (int a = 0; a < 3; ++a) {
    const Axis& axis = axes_[a];
    const float* cos = axis.cos.data() + positions[a] * axis.pairs;
    const float* sin = axis.sin.data() + positions[a] * axis.pairs;
    for (int j = 0; j < axis.pairs; ++j, x += 2) {
      const float even = x[0] * cos[j] - x[1] * sin[j];
      const float odd = x[0] * sin[j] + x[1] * cos[j];
      x[0] = even;
      x[1] = odd;
    }
  }
}

void rms_norm(int dim, double eps, const float* weight, float* x) {
  float squares = 0;
  for (int d = 0; d < dim; ++d) squares += x[d] * x[d];
  const float factor =
      1.0F / std::sqrt(squares / static_cast<float>(dim) + static_cast<float>(eps));
  for (int d = 0; d < dim; ++d) x[d] = x[d] * factor * weight[d];
}

}  // namespace tiny_video_dit
