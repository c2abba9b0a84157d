// SPDX-License-Identifier: Apache-2.0
#include "examples/tiny_video_dit/dit.hpp"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace tiny_video_dit {
namespace {

// 128 rows of the widest activation (1024) are half a MiB: a core's L2 holds it beside the weights'
// panels, and 33 tiles of the shipped grid divide well over a few threads.
constexpr int64_t kTileRows = 128;

int64_t tile_count(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// Calls body(first row, rows, scratch) for every tile; scratch belongs to the thread.
template <class Body>
void for_each_tile(int64_t rows, int threads, size_t scratch_floats, const Body& body) {
  const int64_t tiles = tile_count(rows);
#pragma omp parallel num_threads(threads)
  {
    // A team of one is not "in parallel" for OpenBLAS, and there the OpenMP build of 0.3.29 (not
    // that of 0.3.21) goes by OpenMP's number of threads, whatever openblas_set_num_threads said.
    // This setting ends with the region.
    omp_set_num_threads(1);
    std::vector<float> scratch(scratch_floats);
#pragma omp for schedule(dynamic, 1)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t row0 = tile * kTileRows;
      body(row0, std::min(kTileRows, rows - row0), scratch.data());
    }
  }
}

float mean_abs(std::span<const float> z) {
  double sum = 0;
  for (const float value : z) sum += std::fabs(value);
  return static_cast<float>(sum / static_cast<double>(z.size()));
}

}  // namespace

Dit::Dit(ModelConfig config, Weights weights)
    : config_(std::move(config)), weights_(std::move(weights)) {
  // Tiles run in parallel, so BLAS itself must not: it would oversubscribe the cores, and the order
  // of its sums could depend on the number of threads. The setting belongs to the process.
  openblas_set_num_threads(1);
}

void Dit::set_grid(const Grid& grid) {
  const Grid& full = config_.grid;
  if (grid.t < 1 || grid.h < 1 || grid.w < 1 || grid.t > full.t || grid.h > full.h ||
      grid.w > full.w) {
    throw ModelError("grid " + std::to_string(grid.t) + "x" + std::to_string(grid.h) + "x" +
                     std::to_string(grid.w) + " does not fit the model's " +
                     std::to_string(full.t) + "x" + std::to_string(full.h) + "x" +
                     std::to_string(full.w));
  }
  if (grid == grid_) return;
  grid_ = grid;
  rope_.assign(1, RopeTables(config_, grid));
  z_.resize(static_cast<size_t>(grid.tokens() * config_.dim));
  o_.resize(static_cast<size_t>(grid.tokens() * config_.attention_dim()));
}

std::vector<float> Dit::condition(float t, int class_index) const {
  const int half = config_.dim / 2;
  std::vector<float> features(static_cast<size_t>(config_.dim));
  for (int k = 0; k < half; ++k) {
    const double frequency = std::exp(-std::log(config_.time_max_period) * k / half);
    const double angle = config_.time_scale * static_cast<double>(t) * frequency;
    features[k] = static_cast<float>(std::cos(angle));
    features[half + k] = static_cast<float>(std::sin(angle));
  }
  std::vector<float> hidden = matvec(weights_.time_mlp_0, features);
  silu(hidden);
  std::vector<float> cond = matvec(weights_.time_mlp_2, hidden);
  const float* row = weights_.class_embed.data() + int64_t{class_index} * config_.dim;
  for (int d = 0; d < config_.dim; ++d) cond[d] += row[d];
  return cond;
}

void Dit::embed(std::span<const float> x, int threads) {
  const int dim = config_.dim;
  for_each_tile(grid_.tokens(), threads, 0, [&](int64_t row0, int64_t rows, float*) {
    float* z = z_.data() + row0 * dim;
    matmul(weights_.patch_embed, rows, x.data() + row0 * config_.patch_dim(), z);
    for (int64_t n = row0; n < row0 + rows; ++n, z += dim) {
      const int64_t tau = n / (int64_t{grid_.h} * grid_.w);
      const int64_t eta = (n / grid_.w) % grid_.h;
      const int64_t xi = n % grid_.w;
      const float* bias = weights_.patch_embed.bias.data();
      const float* space = weights_.pos_space.data() + (eta * config_.grid.w + xi) * dim;
      const float* time = weights_.pos_time.data() + tau * dim;
      for (int d = 0; d < dim; ++d) z[d] = z[d] + bias[d] + space[d] + time[d];
    }
  });
}

void Dit::before_attention(const Block& block, const float* mod, Operands operands, int threads) {
  const int dim = config_.dim;
  const int head_dim = config_.head_dim;
  const int width = 3 * config_.attention_dim();
  const int64_t tokens = grid_.tokens();
  const size_t scratch_floats = static_cast<size_t>(kTileRows * (dim + width));
  for_each_tile(tokens, threads, scratch_floats, [&](int64_t row0, int64_t rows, float* scratch) {
    float* u = scratch;
    float* qkv = scratch + kTileRows * dim;
    norm_modulate(rows, dim, config_.norm_eps, z_.data() + row0 * dim, mod, mod + dim, u);
    matmul(block.qkv, rows, u, qkv);
    for (int64_t r = 0; r < rows; ++r) {
      // The 3 * heads vectors of a token in the order of the rows of blocks.i.qkv.
      for (int part = 0; part < 3 * config_.heads; ++part) {
        float* vector = qkv + r * width + part * head_dim;
        const float* bias = block.qkv.bias.data() + part * head_dim;
        for (int d = 0; d < head_dim; ++d) vector[d] += bias[d];
        if (part < 2 * config_.heads) {
          const bool is_query = part < config_.heads;
          rms_norm(head_dim, config_.norm_eps, (is_query ? block.q_norm : block.k_norm).data(),
                   vector);
          rope_[0].rotate(row0 + r, vector);
        }
        const int64_t place = (part * tokens + row0 + r) * head_dim;
        if (operands == Operands::kBf16) {
          std::transform(vector, vector + head_dim, qkv_bf16_.data() + place, to_bf16);
        } else {
          std::copy(vector, vector + head_dim, qkv_fp32_.data() + place);
        }
      }
    }
  });
}

void Dit::after_attention(const Block& block, const float* mod, int threads) {
  const int dim = config_.dim;
  const int mlp = config_.mlp_dim;
  const float* gate1 = mod + 2 * dim;
  const float* shift2 = mod + 3 * dim;
  const float* scale2 = mod + 4 * dim;
  const float* gate2 = mod + 5 * dim;
  const size_t scratch_floats = static_cast<size_t>(kTileRows * (dim + mlp));
  for_each_tile(grid_.tokens(), threads, scratch_floats,
                [&](int64_t row0, int64_t rows, float* scratch) {
                  float* narrow = scratch;
                  float* wide = scratch + kTileRows * dim;
                  float* z = z_.data() + row0 * dim;
                  matmul(block.proj, rows, o_.data() + row0 * config_.attention_dim(), narrow);
                  gated_residual(rows, dim, gate1, block.proj.bias.data(), narrow, z);
                  norm_modulate(rows, dim, config_.norm_eps, z, shift2, scale2, narrow);
                  matmul(block.fc1, rows, narrow, wide);
                  bias_gelu(rows, mlp, block.fc1.bias.data(), wide);
                  matmul(block.fc2, rows, wide, narrow);
                  gated_residual(rows, dim, gate2, block.fc2.bias.data(), narrow, z);
                });
}

void Dit::head(const float* mod, int threads, std::span<float> x0) {
  const int dim = config_.dim;
  const int out = config_.patch_dim();
  const size_t scratch_floats = static_cast<size_t>(kTileRows * dim);
  for_each_tile(grid_.tokens(), threads, scratch_floats, [&](int64_t row0, int64_t rows, float* u) {
    norm_modulate(rows, dim, config_.norm_eps, z_.data() + row0 * dim, mod, mod + dim, u);
    float* y = x0.data() + row0 * out;
    matmul(weights_.final_proj, rows, u, y);
    const float* bias = weights_.final_proj.bias.data();
    for (int64_t r = 0; r < rows; ++r, y += out) {
      for (int i = 0; i < out; ++i) y[i] += bias[i];
    }
  });
}

void Dit::forward(const Grid& grid, std::span<const float> x, float t, int class_index,
                  Operands operands, const AttentionFn& attention, int threads, std::span<float> x0,
                  ForwardTrace* trace) {
  set_grid(grid);
  const size_t elements = static_cast<size_t>(grid.tokens() * config_.patch_dim());
  if (x.size() != elements || x0.size() != elements) {
    throw ModelError("forward: x and x0 must have tokens * patch size elements");
  }
  if (class_index < 0 || class_index > config_.null_class()) {
    throw ModelError("forward: class " + std::to_string(class_index) + " is not in [0, " +
                     std::to_string(config_.null_class()) + "]");
  }
  const int64_t tokens = grid.tokens();
  const int64_t head_elements = tokens * config_.attention_dim();
  const bool bf16 = operands == Operands::kBf16;
  if (bf16) {
    qkv_bf16_.resize(static_cast<size_t>(3 * head_elements));
  } else {
    qkv_fp32_.resize(static_cast<size_t>(3 * head_elements));
  }
  const auto operand = [&](int part) -> const void* {
    if (bf16) return qkv_bf16_.data() + part * head_elements;
    return qkv_fp32_.data() + part * head_elements;
  };

  std::vector<float> s = condition(t, class_index);
  if (trace != nullptr) *trace = {s, {}, {}};
  silu(s);
  embed(x, threads);
  if (trace != nullptr) trace->block_mean_abs.push_back(mean_abs(z_));
  for (int layer = 0; layer < config_.layers; ++layer) {
    const Block& block = weights_.blocks[layer];
    const std::vector<float> mod = matvec(block.mod, s);
    before_attention(block, mod.data(), operands, threads);
    attention({layer, config_.heads, config_.head_dim, grid, operands, operand(0), operand(1),
               operand(2), o_.data()});
    after_attention(block, mod.data(), threads);
    if (trace != nullptr) trace->block_mean_abs.push_back(mean_abs(z_));
  }
  if (trace != nullptr) trace->z_final = z_;
  head(matvec(weights_.final_mod, s).data(), threads, x0);
}

}  // namespace tiny_video_dit
