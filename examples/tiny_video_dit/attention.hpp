// SPDX-License-Identifier: Apache-2.0
// The model's attention through the public C ABI: one recipe, one group state per layer and
// guidance branch, kept over the denoising steps of a generation.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/tiny_video_dit/dit.hpp"
#include "vca/vca.h"

namespace tiny_video_dit {

// A call of the library failed; the text is the library's own.
struct AttentionError : std::runtime_error {
  AttentionError(vca_status code, const std::string& text)
      : std::runtime_error(text), status(code) {}
  vca_status status;
};

struct AttentionOptions {
  std::string recipe;  // as vca_recipe_parse takes it: "vc8", "vc8+had"
  int32_t grouping = VCA_GROUPING_DEFAULT;
  vca_policy policy = {};  // struct_size is filled in
  int layers = 1;
  int branches = 1;  // 2 with classifier-free guidance
  int threads = 1;
};

struct AttentionReport {
  double energy_removed = 0;  // f, summed over the heads where it is defined
  int energy_heads = 0;       // heads that f was defined for
  int regroupings = 0;        // heads that got a new order
  double seconds = 0;

  void add(const AttentionReport& other);
};

// Resolved names, as the library reports them.
struct AttentionDescription {
  std::string grouping;
  std::string kernel;
};

class VcaAttention {
 public:
  // AttentionError for a recipe that the library does not know.
  explicit VcaAttention(AttentionOptions options);
  ~VcaAttention();
  VcaAttention(const VcaAttention&) = delete;
  VcaAttention& operator=(const VcaAttention&) = delete;

  // Fills call.o for denoising step `step` of branch `branch`.
  AttentionReport run(const AttentionCall& call, int step, int branch);

  // Forgets all orders: a new generation begins.
  void reset();

  const AttentionDescription& description() const { return description_; }

 private:
  struct Buffer;
  vca_attn_desc describe(const AttentionCall& call, const int32_t* step, int branch);
  void* state_for(const vca_attn_desc& desc, int layer, int branch);

  AttentionOptions options_;
  int32_t recipe_ = VCA_RECIPE_AUTO;
  int32_t hadamard_ = 0;
  std::vector<std::unique_ptr<Buffer>> states_;  // [branch][layer], made at the first call
  std::unique_ptr<Buffer> workspace_;
  std::vector<float> energy_;
  std::vector<uint8_t> regrouped_;
  AttentionDescription description_;
};

}  // namespace tiny_video_dit
