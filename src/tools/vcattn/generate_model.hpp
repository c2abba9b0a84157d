// SPDX-License-Identifier: Apache-2.0
// The video DiT's weight file.
#pragma once

#include <filesystem>

#include "examples/tiny_video_dit/config.hpp"
#include "examples/tiny_video_dit/weights.hpp"

namespace vca::tools {

struct Model {
  tiny_video_dit::ModelConfig config;
  tiny_video_dit::Weights weights;
};

// UserError when the file is no usable model.
Model load_model(const std::filesystem::path& path);

}  // namespace vca::tools
