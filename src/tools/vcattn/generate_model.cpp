// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/generate_model.hpp"

#include <utility>

#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/safetensors.hpp"

namespace vca::tools {

namespace fs = std::filesystem;

Model load_model(const fs::path& path) {
  const SafetensorsFile file(path);
  try {
    tiny_video_dit::ModelConfig config = tiny_video_dit::parse_config(file.metadata());
    const auto lookup = [&](const std::string& name, tiny_video_dit::StoredTensor& tensor) {
      const TensorInfo* info = file.find(name);
      if (info == nullptr) return false;
      tensor = {info->dtype, info->shape, static_cast<const uint8_t*>(file.data(*info))};
      return true;
    };
    tiny_video_dit::Weights weights = tiny_video_dit::load_weights(config, lookup);
    return {std::move(config), std::move(weights)};
  } catch (const tiny_video_dit::ModelError& error) {
    throw UserError(
        "cannot use the model " + path.string(), error.what(), "",
        "give a file written by examples/tiny_video_dit/train.py, or leave --model out");
  }
}

}  // namespace vca::tools
