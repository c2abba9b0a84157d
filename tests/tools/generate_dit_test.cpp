// SPDX-License-Identifier: Apache-2.0
// The C++ network against the golden forward pass of the PyTorch one (MODEL.md section 8).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <span>

#include "examples/tiny_video_dit/attention.hpp"
#include "examples/tiny_video_dit/dit.hpp"
#include "examples/tiny_video_dit/noise.hpp"
#include "examples/tiny_video_dit/sampler.hpp"
#include "tools/vcattn/generate_model.hpp"
#include "tools/vcattn/generate_options.hpp"
#include "tools/vcattn/safetensors.hpp"

namespace {

using namespace tiny_video_dit;
using vca::tools::SafetensorsFile;
using vca::tools::TensorInfo;

const SafetensorsFile& golden() {
  static const SafetensorsFile kFile(VCA_SOURCE_DIR "/tests/golden/tiny_dit_forward.safetensors");
  return kFile;
}

template <class T>
std::vector<T> golden_values(const char* name) {
  const TensorInfo* info = golden().find(name);
  if (info == nullptr) throw std::runtime_error(std::string("golden file has no ") + name);
  std::vector<T> values(static_cast<size_t>(info->elements()));
  std::memcpy(values.data(), golden().data(*info), values.size() * sizeof(T));
  return values;
}

vca::tools::Model& model() {
  static vca::tools::Model kModel = vca::tools::load_model(vca::tools::default_model());
  return kModel;
}

double operand_at(const AttentionCall& call, const void* data, int64_t index) {
  if (call.operands == Operands::kFp32) return static_cast<const float*>(data)[index];
  const uint32_t bits = static_cast<const uint16_t*>(data)[index];
  return std::bit_cast<float>(bits << 16);
}

// softmax(q k^T / sqrt(d)) v in FP64.
void exact_attention(const AttentionCall& call) {
  const int64_t n = call.grid.tokens();
  const int d = call.head_dim;
  std::vector<double> p(static_cast<size_t>(n));
  for (int h = 0; h < call.heads; ++h) {
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        double score = 0;
        for (int c = 0; c < d; ++c) {
          score += operand_at(call, call.q, (h * n + i) * d + c) *
                   operand_at(call, call.k, (h * n + j) * d + c);
        }
        // QK norm bounds the scores, so no maximum has to be taken out.
        p[j] = std::exp(score / std::sqrt(d));
        sum += p[j];
      }
      for (int c = 0; c < d; ++c) {
        double o = 0;
        for (int64_t j = 0; j < n; ++j) o += p[j] * operand_at(call, call.v, (h * n + j) * d + c);
        call.o[(i * call.heads + h) * d + c] = static_cast<float>(o / sum);
      }
    }
  }
}

double relative_l2(std::span<const float> x, std::span<const float> wanted) {
  EXPECT_EQ(x.size(), wanted.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    difference += std::pow(double{x[i]} - double{wanted[i]}, 2);
    norm += std::pow(double{wanted[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

// An FP32 sum of K terms errs by about sqrt(K) 2^-24 of its terms' norm when roundings are
// independent. Along the path of a forward pass the squares add up: 384 (embedding) + 4 blocks of
// 256 (qkv) + 128 (scores) + 64 (values) + 256 (proj) + 256 (fc1) + 1024 (fc2) + four norms of 256
// + 256 (head), 12 672 in all: 113 * 2^-24 = 6.7e-6, in both implementations: 9.5e-6. A factor 4
// is for sums whose result is smaller than their terms.
constexpr double kTolerance = 4e-5;

// BF16 rounding turns a difference of relative size e near a tie into one of 2^-8: a share of
// about e / 2^-8 of the elements flips, so rms error grows to 2^-8 sqrt(e 2^8) = sqrt(e / 256) per
// rounding. With e = kTolerance / 4 that is 2e-4 on q, k and v; four layers in the square give
// 4e-4, and again a factor 2.
constexpr double kRoundedTolerance = 8e-4;

struct Forward {
  std::vector<float> out;
  ForwardTrace trace;
};

Forward forward(Operands operands, const AttentionFn& attention, int threads) {
  const std::vector<float> x = golden_values<float>("x");
  const auto& metadata = golden().metadata();
  const float t = std::stof(metadata.at("t"));
  const int class_index = std::stoi(metadata.at("class"));
  Dit dit(model().config, model().weights);
  Forward result;
  result.out.resize(x.size());
  Grid grid;
  EXPECT_EQ(std::sscanf(metadata.at("grid").c_str(), "%d,%d,%d", &grid.t, &grid.h, &grid.w), 3);
  dit.forward(grid, x, t, class_index, operands, attention, threads, result.out, &result.trace);
  return result;
}

TEST(DitGolden, NoiseAndTimeGrid) {
  const uint64_t seed = std::stoull(golden().metadata().at("seed"));
  const std::vector<int64_t> words = golden_values<int64_t>("noise_words");
  for (size_t i = 0; i < words.size(); ++i) {
    EXPECT_EQ(philox_words(seed, i / 4)[i % 4], static_cast<uint32_t>(words[i])) << i;
  }
  const std::vector<float> x = golden_values<float>("x");
  std::vector<float> normals(x.size());
  fill_normals(seed, 0, normals);
  for (size_t i = 0; i < x.size(); ++i) {
    // One ulp of FP32 from two libraries' log, sin and cos; near a zero of the cosine its argument
    // (up to 2 pi, rounded at 2^-51) matters instead.
    EXPECT_NEAR(normals[i], x[i], std::fabs(x[i]) * 0x1p-23 + 1e-14) << i;
  }
  const std::vector<double> grid = golden_values<double>("time_grid");
  const std::vector<double> ours =
      time_grid(static_cast<int>(grid.size()) - 1, model().config.shift);
  for (size_t i = 0; i < grid.size(); ++i) EXPECT_NEAR(ours[i], grid[i], 1e-15) << i;
}

TEST(DitGolden, ForwardWithFp32Operands) {
  const Forward result = forward(Operands::kFp32, exact_attention, 2);
  EXPECT_LT(relative_l2(result.trace.cond, golden_values<float>("cond")), kTolerance);
  const std::vector<float> means = golden_values<float>("block_mean_abs");
  ASSERT_EQ(result.trace.block_mean_abs.size(), means.size());
  for (size_t i = 0; i < means.size(); ++i) {
    EXPECT_NEAR(result.trace.block_mean_abs[i] / means[i], 1, kTolerance) << i;
  }
  EXPECT_LT(relative_l2(result.trace.z_final, golden_values<float>("z_final")), kTolerance);
  EXPECT_LT(relative_l2(result.out, golden_values<float>("out")), kTolerance);
}

TEST(DitGolden, ForwardWithBf16Operands) {
  const Forward result = forward(Operands::kBf16, exact_attention, 2);
  const double error = relative_l2(result.out, golden_values<float>("out_bf16_qkv"));
  EXPECT_LT(error, kRoundedTolerance);
  // The two golden outputs differ by more than that, so the test sees a missing rounding.
  EXPECT_GT(relative_l2(golden_values<float>("out"), golden_values<float>("out_bf16_qkv")), error);
}

TEST(DitGolden, LibraryAttentionInBf16) {
  VcaAttention attention({"bf16", VCA_GROUPING_DEFAULT, {}, model().config.layers, 1, 2});
  const Forward result = forward(
      Operands::kBf16, [&](const AttentionCall& call) { attention.run(call, 0, 0); }, 2);
  EXPECT_LT(relative_l2(result.out, golden_values<float>("out_bf16_qkv")), kRoundedTolerance);
}

TEST(DitGolden, BytesDoNotDependOnThreads) {
  const Forward one = forward(Operands::kBf16, exact_attention, 1);
  const Forward three = forward(Operands::kBf16, exact_attention, 3);
  EXPECT_EQ(std::memcmp(one.out.data(), three.out.data(), one.out.size() * sizeof(float)), 0);
}

// The library's own rotary embedding is the one that the network applies: FP32 operands rotated by
// the network, against unrotated operands and vca_rope.
TEST(DitGolden, RopeOfTheLibraryIsTheModels) {
  const ModelConfig& config = model().config;
  const Grid grid = {2, 4, 5};
  const int64_t n = grid.tokens();
  const int d = config.head_dim;
  std::vector<float> raw(static_cast<size_t>(3 * n * d));
  fill_normals(5, 0, raw);
  std::vector<float> rotated = raw;
  const RopeTables tables(config, grid);
  for (int64_t token = 0; token < 2 * n; ++token) {
    tables.rotate(token % n, rotated.data() + token * d);
  }
  const auto run = [&](std::vector<float>& operands, const vca_rope* rope) {
    std::vector<float> o(static_cast<size_t>(n * d));
    vca_attn_desc desc = {};
    desc.struct_size = sizeof(desc);
    vca_tensor* views[4] = {&desc.q, &desc.k, &desc.v, &desc.o};
    for (int i = 0; i < 4; ++i) {
      views[i]->data = i == 3 ? o.data() : operands.data() + i * n * d;
      views[i]->dtype = VCA_FP32;
      const int64_t shape[4] = {1, 1, n, d};
      const int64_t stride[4] = {n * d, n * d, d, 1};
      std::copy(shape, shape + 4, views[i]->shape);
      std::copy(stride, stride + 4, views[i]->stride);
    }
    desc.device = VCA_DEVICE_CPU;
    desc.recipe = VCA_RECIPE_EXACT;
    desc.rope = rope;
    EXPECT_EQ(vca_attn_run(&desc, nullptr, 0, nullptr), VCA_OK) << vca_last_error();
    return o;
  };
  vca_rope rope = {};
  rope.struct_size = sizeof(rope);
  rope.convention = VCA_ROPE_INTERLEAVED;
  std::copy(config.rope_split.begin(), config.rope_split.end(), rope.axis_dim);
  rope.theta = config.rope_theta;
  rope.grid[0] = grid.t;
  rope.grid[1] = grid.h;
  rope.grid[2] = grid.w;
  const std::vector<float> inside = run(raw, &rope);
  const std::vector<float> outside = run(rotated, nullptr);
  const std::vector<float> without = run(raw, nullptr);
  // Three FP32 roundings per rotated element at scores of about sqrt(128) / sqrt(128) = 1: the
  // error of an output stays near 2^-24 * sqrt(3) * 2; 2e-6 has room.
  EXPECT_LT(relative_l2(inside, outside), 2e-6);
  EXPECT_GT(relative_l2(without, outside), 1e-2);
}

}  // namespace
