// SPDX-License-Identifier: Apache-2.0
// The rectified-flow sampler (MODEL.md section 6) and the way from its state to pixels (section 2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "examples/tiny_video_dit/config.hpp"

namespace tiny_video_dit {

// t_0 = 1 ... t_steps = 0; shift > 1 spends more steps at high noise.
std::vector<double> time_grid(int steps, double shift);

// Classifier-free guidance: x0 = x0_null + guidance * (x0 - x0_null).
void guide(std::span<float> x0, std::span<const float> x0_null, float guidance);

// One Euler step from t to t_next towards the predicted clean clip.
void euler_step(std::span<float> x, std::span<const float> x0, double t, double t_next);

// RGB frames, one byte a channel: [frames][height][width][3].
struct Clip {
  int frames = 0;
  int height = 0;
  int width = 0;
  std::vector<uint8_t> rgb;

  int64_t frame_bytes() const { return int64_t{3} * height * width; }
  const uint8_t* frame(int index) const { return rgb.data() + index * frame_bytes(); }
  uint8_t* frame(int index) { return rgb.data() + index * frame_bytes(); }
};

// Tokens [N, P] of the full grid to pixels.
Clip to_clip(const ModelConfig& config, std::span<const float> x);

}  // namespace tiny_video_dit
