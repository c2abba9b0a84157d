// SPDX-License-Identifier: Apache-2.0
#include "examples/tiny_video_dit/sampler.hpp"

#include <algorithm>
#include <cmath>

namespace tiny_video_dit {

std::vector<double> time_grid(int steps, double shift) {
  std::vector<double> grid;
  grid.reserve(static_cast<size_t>(steps) + 1);
  for (int i = 0; i <= steps; ++i) {
    const double u = 1.0 - static_cast<double>(i) / steps;
    grid.push_back(shift * u / (1.0 + (shift - 1.0) * u));
  }
  return grid;
}

void guide(std::span<float> x0, std::span<const float> x0_null, float guidance) {
  for (size_t i = 0; i < x0.size(); ++i) x0[i] = x0_null[i] + guidance * (x0[i] - x0_null[i]);
}

void euler_step(std::span<float> x, std::span<const float> x0, double t, double t_next) {
  const float ratio = static_cast<float>(t_next / t);
  for (size_t i = 0; i < x.size(); ++i) x[i] = x0[i] + ratio * (x[i] - x0[i]);
}

Clip to_clip(const ModelConfig& config, std::span<const float> x) {
  const auto [pt, py, px] = config.patch;
  const int64_t row_bytes = int64_t{3} * config.width;
  Clip clip{config.frames, config.height, config.width, {}};
  clip.rgb.resize(static_cast<size_t>(clip.frame_bytes() * clip.frames));
  const float* value = x.data();
  for (int tau = 0; tau < config.grid.t; ++tau) {
    for (int eta = 0; eta < config.grid.h; ++eta) {
      for (int xi = 0; xi < config.grid.w; ++xi) {
        for (int dt = 0; dt < pt; ++dt) {
          for (int dy = 0; dy < py; ++dy) {
            uint8_t* pixel = clip.frame(tau * pt + dt) + (eta * py + dy) * row_bytes + 3 * px * xi;
            for (int i = 0; i < 3 * px; ++i, ++value) {
              const float level = std::floor((*value + 1.0F) * 127.5F + 0.5F);
              pixel[i] = static_cast<uint8_t>(std::clamp(level, 0.0F, 255.0F));
            }
          }
        }
      }
    }
  }
  return clip;
}

}  // namespace tiny_video_dit
