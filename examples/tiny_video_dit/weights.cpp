// SPDX-License-Identifier: Apache-2.0
#include "examples/tiny_video_dit/weights.hpp"

#include <bit>
#include <cmath>
#include <cstring>

namespace tiny_video_dit {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

class Loader {
 public:
  explicit Loader(const TensorLookup& lookup) : lookup_(lookup) {}

  std::vector<float> tensor(const std::string& name, const std::vector<int64_t>& shape) const {
    StoredTensor stored;
    if (!lookup_(name, stored)) {
      throw ModelError("model: tensor \"" + name + "\" is missing; wanted BF16 " +
                       shape_text(shape));
    }
    if (stored.dtype != "BF16" || stored.shape != shape) {
      throw ModelError("model: tensor \"" + name + "\" is " + stored.dtype + " " +
                       shape_text(stored.shape) + "; wanted BF16 " + shape_text(shape));
    }
    size_t count = 1;
    for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, stored.data + 2 * i, 2);
      values[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      if (!std::isfinite(values[i])) {
        throw ModelError("model: tensor \"" + name + "\" has a NaN or Inf at flat index " +
                         std::to_string(i) + "; the file is damaged");
      }
    }
    return values;
  }

  Linear linear(const std::string& name, int out, int in) const {
    return {tensor(name + ".weight", {out, in}), tensor(name + ".bias", {out}), in, out};
  }

 private:
  const TensorLookup& lookup_;
};

}  // namespace

Weights load_weights(const ModelConfig& config, const TensorLookup& lookup) {
  const Loader load(lookup);
  const int dim = config.dim;
  Weights weights;
  weights.patch_embed = load.linear("patch_embed", dim, config.patch_dim());
  weights.pos_space = load.tensor("pos_space", {int64_t{config.grid.h} * config.grid.w, dim});
  weights.pos_time = load.tensor("pos_time", {config.grid.t, dim});
  weights.class_embed = load.tensor("class_embed", {config.null_class() + 1, dim});
  weights.time_mlp_0 = load.linear("time_mlp.0", dim, dim);
  weights.time_mlp_2 = load.linear("time_mlp.2", dim, dim);
  for (int i = 0; i < config.layers; ++i) {
    const std::string name = "blocks." + std::to_string(i) + ".";
    Block block;
    block.mod = load.linear(name + "mod", 6 * dim, dim);
    block.qkv = load.linear(name + "qkv", 3 * config.attention_dim(), dim);
    block.q_norm = load.tensor(name + "q_norm.weight", {config.head_dim});
    block.k_norm = load.tensor(name + "k_norm.weight", {config.head_dim});
    block.proj = load.linear(name + "proj", dim, config.attention_dim());
    block.fc1 = load.linear(name + "fc1", config.mlp_dim, dim);
    block.fc2 = load.linear(name + "fc2", dim, config.mlp_dim);
    weights.blocks.push_back(std::move(block));
  }
  weights.final_mod = load.linear("final.mod", 2 * dim, dim);
  weights.final_proj = load.linear("final.proj", config.patch_dim(), dim);
  return weights;
}

}  // namespace tiny_video_dit
