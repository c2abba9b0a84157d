// SPDX-License-Identifier: Apache-2.0
// The model's tensors (MODEL.md section 3), expanded from BF16 to FP32.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "examples/tiny_video_dit/config.hpp"

namespace tiny_video_dit {

// y = W x + b, W as [out][in].
struct Linear {
  std::vector<float> weight;
  std::vector<float> bias;
  int in = 0;
  int out = 0;
};

struct Block {
  Linear mod;
  Linear qkv;
  std::vector<float> q_norm;
  std::vector<float> k_norm;
  Linear proj;
  Linear fc1;
  Linear fc2;
};

struct Weights {
  Linear patch_embed;
  std::vector<float> pos_space;    // [H * W][D]
  std::vector<float> pos_time;     // [T][D]
  std::vector<float> class_embed;  // [C + 1][D]
  Linear time_mlp_0;
  Linear time_mlp_2;
  std::vector<Block> blocks;
  Linear final_mod;
  Linear final_proj;
};

// A tensor as the weight file holds it; borrowed.
struct StoredTensor {
  std::string dtype;  // "BF16"
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;
};

// Returns false when the file has no tensor of that name.
using TensorLookup = std::function<bool(const std::string& name, StoredTensor& tensor)>;

// Throws ModelError for a missing tensor, a wrong shape or dtype, or a value that is not finite.
Weights load_weights(const ModelConfig& config, const TensorLookup& lookup);

}  // namespace tiny_video_dit
