// SPDX-License-Identifier: Apache-2.0
// Shapes and settings of the model, read from the weight file's metadata (MODEL.md section 3).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace tiny_video_dit {

// The file is no usable model: the text says what, got, allowed and what to do.
struct ModelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Grid {
  int t = 0;
  int h = 0;
  int w = 0;

  int64_t tokens() const { return int64_t{t} * h * w; }
  bool operator==(const Grid&) const = default;
};

struct ModelConfig {
  int frames = 0;
  int height = 0;
  int width = 0;
  std::array<int, 3> patch{};  // frames, rows, columns
  Grid grid;
  int dim = 0;
  int layers = 0;
  int heads = 0;
  int head_dim = 0;
  int mlp_dim = 0;
  std::vector<std::string> classes;
  double rope_theta = 0;
  std::array<int, 3> rope_split{};  // channels of the axes t, h, w
  double norm_eps = 0;
  double time_scale = 0;
  double time_max_period = 0;
  double shift = 0;
  int steps = 0;
  double guidance = 0;
  double fps = 0;
  std::string licence;
  std::string attribution;

  int patch_dim() const { return patch[0] * patch[1] * patch[2] * 3; }
  int attention_dim() const { return heads * head_dim; }
  int null_class() const { return static_cast<int>(classes.size()); }
};

// Throws ModelError. Every number is checked, so that sizes computed from the result cannot
// overflow.
ModelConfig parse_config(const std::map<std::string, std::string>& metadata);

}  // namespace tiny_video_dit
