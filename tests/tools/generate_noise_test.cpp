// SPDX-License-Identifier: Apache-2.0
// Noise and sampler of the bundled video DiT against the known answers of its MODEL.md.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "examples/tiny_video_dit/noise.hpp"
#include "examples/tiny_video_dit/sampler.hpp"

namespace {

using namespace tiny_video_dit;

TEST(Noise, PhiloxKnownAnswers) {
  // MODEL.md section 7, which is the published known answer of Philox4x32-10 for zeros.
  const std::array<uint32_t, 4> zero = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  EXPECT_EQ(philox_words(0, 0), zero);
}

TEST(Noise, SeedAndCounterUseAllTheirBits) {
  const std::array<uint32_t, 4> base = philox_words(1, 1);
  EXPECT_NE(philox_words(1 | uint64_t{1} << 32, 1), base);
  EXPECT_NE(philox_words(1, 1 | uint64_t{1} << 32), base);
}

TEST(Noise, NormalsFollowTheFormula) {
  std::vector<float> normals(4);
  fill_normals(0, 0, normals);
  const double unit[4] = {(0x6627e8d5 + 0.5) * 0x1p-32, (0xe169c58d + 0.5) * 0x1p-32,
                          (0xbc57ac4c + 0.5) * 0x1p-32, (0x9b00dbd8 + 0.5) * 0x1p-32};
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2 * std::log(unit[2 * pair]));
    const double angle = 2 * std::numbers::pi * unit[2 * pair + 1];
    EXPECT_EQ(normals[2 * pair], static_cast<float>(radius * std::cos(angle)));
    EXPECT_EQ(normals[2 * pair + 1], static_cast<float>(radius * std::sin(angle)));
  }
}

TEST(Noise, AnyPartEqualsTheWhole) {
  std::vector<float> whole(64);
  fill_normals(9, 0, whole);
  for (size_t first = 0; first < 9; ++first) {
    std::vector<float> part(13);
    fill_normals(9, first, part);
    for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[first + i]);
  }
}

TEST(Noise, MomentsOfAStandardNormal) {
  constexpr int kCount = 1 << 18;
  std::vector<float> normals(kCount);
  fill_normals(2026, 0, normals);
  double mean = 0;
  double square = 0;
  double fourth = 0;
  for (const float x : normals) {
    mean += x;
    square += double{x} * x;
    fourth += double{x} * x * x * x;
  }
  // Standard errors are 1/sqrt(n), sqrt(2/n) and sqrt(96/n); five of them each.
  const double unit = 5 / std::sqrt(double{kCount});
  EXPECT_NEAR(mean / kCount, 0, unit);
  EXPECT_NEAR(square / kCount, 1, unit * std::sqrt(2.0));
  EXPECT_NEAR(fourth / kCount, 3, unit * std::sqrt(96.0));
}

TEST(Sampler, TimeGridEndsAndShift) {
  const std::vector<double> plain = time_grid(4, 1);
  EXPECT_EQ(plain, (std::vector<double>{1, 0.75, 0.5, 0.25, 0}));
  const std::vector<double> shifted = time_grid(2, 3);
  ASSERT_EQ(shifted.size(), 3U);
  EXPECT_EQ(shifted[0], 1);
  EXPECT_EQ(shifted[1], 0.75);  // 3 * 0.5 / (1 + 2 * 0.5)
  EXPECT_EQ(shifted[2], 0);
}

TEST(Sampler, EulerStepMovesTowardsThePrediction) {
  std::vector<float> x = {4, -2};
  const std::vector<float> x0 = {0, 2};
  euler_step(x, x0, 1.0, 0.5);
  EXPECT_EQ(x, (std::vector<float>{2, 0}));
  euler_step(x, x0, 0.5, 0);
  EXPECT_EQ(x, x0);
}

TEST(Sampler, GuidanceExtrapolates) {
  std::vector<float> x0 = {3, 1};
  const std::vector<float> null = {1, 1};
  guide(x0, null, 2);
  EXPECT_EQ(x0, (std::vector<float>{5, 1}));
}

TEST(Sampler, PixelsRoundClampAndLandInTheirPlace) {
  ModelConfig config;
  config.patch = {2, 2, 2};
  config.grid = {1, 2, 2};
  config.frames = 2;
  config.height = 4;
  config.width = 4;
  std::vector<float> x(static_cast<size_t>(config.grid.tokens() * config.patch_dim()), -1.0F);
  // Token 3 = row 1, column 1; feature ((dt * 2 + dy) * 2 + dx) * 3 + c of dt 1, dy 0, dx 1, c 2.
  x[3 * 24 + ((1 * 2 + 0) * 2 + 1) * 3 + 2] = 1.0F;
  x[0] = -3.0F;
  x[1] = 7.0F;
  x[2] = 0.0F;  // floor(127.5 + 0.5) = 128
  const Clip clip = to_clip(config, x);
  EXPECT_EQ(clip.frame(0)[0], 0);
  EXPECT_EQ(clip.frame(0)[1], 255);
  EXPECT_EQ(clip.frame(0)[2], 128);
  EXPECT_EQ(clip.frame(1)[(2 * 4 + 3) * 3 + 2], 255);
  int64_t sum = 0;
  for (const uint8_t level : clip.rgb) sum += level;
  EXPECT_EQ(sum, 255 + 128 + 255);
}

}  // namespace
