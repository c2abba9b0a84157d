// SPDX-License-Identifier: Apache-2.0
// Quality measures against values computed by hand.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>

#include "tools/vcattn/quality.hpp"

namespace {

using namespace vca::tools;

Clip constant(int frames, int height, int width, uint8_t level) {
  Clip clip{frames, height, width, {}};
  clip.rgb.assign(static_cast<size_t>(clip.frame_bytes() * frames), level);
  return clip;
}

// A fixed sequence; the quality of the randomness does not matter.
Clip pattern(int frames, int height, int width, uint32_t state) {
  Clip clip = constant(frames, height, width, 0);
  for (uint8_t& level : clip.rgb) {
    state = state * 1664525U + 1013904223U;
    level = static_cast<uint8_t>(state >> 24);
  }
  return clip;
}

TEST(Quality, PsnrOfOneLevel) {
  EXPECT_DOUBLE_EQ(psnr_db(constant(2, 4, 4, 100), constant(2, 4, 4, 101)), 20 * std::log10(255.0));
}

TEST(Quality, PsnrCountsAllFramesAndChannels) {
  Clip clip = constant(2, 4, 4, 0);
  clip.rgb.back() = 255;
  EXPECT_DOUBLE_EQ(psnr_db(clip, constant(2, 4, 4, 0)), 10 * std::log10(2 * 4 * 4 * 3.0));
}

TEST(Quality, EqualClips) {
  const Clip clip = pattern(2, 16, 20, 1);
  EXPECT_TRUE(std::isinf(psnr_db(clip, clip)));
  EXPECT_DOUBLE_EQ(*ssim(clip, clip).value, 1);
}

TEST(Quality, SsimOfConstantPicturesIsTheLuminanceTerm) {
  const double c1 = 2.55 * 2.55;
  const double wanted = (2 * 100.0 * 110.0 + c1) / (100.0 * 100 + 110.0 * 110 + c1);
  // Variances are differences of means of squares near 1e4, so they carry about 1e4 * 2^-52 of
  // rounding against C2 = 58.5: 1e-12 holds with room.
  EXPECT_NEAR(*ssim(constant(1, 12, 13, 100), constant(1, 12, 13, 110)).value, wanted, 1e-12);
}

TEST(Quality, SsimOfAnInvertedCheckerboard) {
  Clip board = constant(1, 16, 16, 0);
  Clip inverse = board;
  for (int y = 0; y < 16; ++y) {
    for (int x = 0; x < 16; ++x) {
      for (int c = 0; c < 3; ++c) {
        Clip& white = (x + y) % 2 == 0 ? board : inverse;
        white.rgb[(y * 16 + x) * 3 + c] = 200;
      }
    }
  }
  // Means are 100 and variances 1e4 up to the window's response to the alternating pattern: the
  // product of two sums of (-1)^i w_i, below (2e-3)^2 each; so cov = -1e4 and
  // SSIM = (C2 - 2e4) / (C2 + 2e4) within 1e-4.
  const double c2 = 7.65 * 7.65;
  EXPECT_NEAR(*ssim(board, inverse).value, (c2 - 2e4) / (c2 + 2e4), 1e-4);
}

TEST(Quality, SsimOfTinyPicturesIsRefusedWithAReason) {
  const Measure measure = ssim(constant(1, 10, 40, 1), constant(1, 10, 40, 1));
  EXPECT_FALSE(measure.value.has_value());
  EXPECT_NE(measure.reason.find("11"), std::string::npos);
}

TEST(Quality, ToolsMeasureOrSayWhyNot) {
  const Clip reference = pattern(2, 48, 48, 3);
  Clip near = reference;
  for (uint8_t& level : near.rgb) level = static_cast<uint8_t>(level ^ 1);
  Clip far = reference;
  for (uint8_t& level : far.rgb) level = static_cast<uint8_t>(level ^ 32);
  const PerceptualTools tools(reference, 12, 2);
  const auto equal_measures = tools.measure(reference);
  const auto near_measures = tools.measure(near);
  const auto far_measures = tools.measure(far);
  for (const char* name : {"ssimulacra2", "ssimulacra", "butteraugli", "vif"}) {
    const Measure& near_one = near_measures.at(name);
    if (!near_one.value) {
      EXPECT_FALSE(near_one.reason.empty()) << name;
      continue;
    }
    const bool higher_is_closer = std::string(name) == "ssimulacra2" || std::string(name) == "vif";
    const double sign = higher_is_closer ? 1 : -1;
    EXPECT_GT(sign * *equal_measures.at(name).value, sign * *near_one.value) << name;
    EXPECT_GT(sign * *near_one.value, sign * *far_measures.at(name).value) << name;
  }
}

TEST(Quality, MissingToolsGiveAReasonAndNoFailure) {
  const std::string path = getenv("PATH");
  setenv("PATH", "/nonexistent", 1);
  const Clip clip = pattern(1, 16, 16, 5);
  std::map<std::string, Measure> measures;
  measures = PerceptualTools(clip, 12, 1).measure(clip);
  setenv("PATH", path.c_str(), 1);
  ASSERT_EQ(measures.size(), 4U);
  for (const auto& [name, measure] : measures) {
    EXPECT_FALSE(measure.value.has_value()) << name;
    EXPECT_NE(measure.reason.find("not found"), std::string::npos) << name;
  }
}

}  // namespace
