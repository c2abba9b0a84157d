// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/generate_capture.hpp"

#include <algorithm>

#include "tools/vcattn/safetensors.hpp"

namespace vca::tools {

void CaptureWriter::observe(const tiny_video_dit::AttentionCall& call, int step, int branch) {
  const std::vector<int>& steps = options_.capture_steps;
  if (std::find(steps.begin(), steps.end(), step) == steps.end()) return;
  const std::filesystem::path path =
      options_.capture / ("layer-" + std::to_string(call.layer) + "-step-" + std::to_string(step) +
                          (branch == 0 ? "" : "-without-class") + ".safetensors");
  const std::vector<int64_t> shape = {1, call.heads, call.grid.tokens(), call.head_dim};
  const std::vector<TensorToWrite> tensors = {{"q", spec::DType::bf16, shape, call.q},
                                              {"k", spec::DType::bf16, shape, call.k},
                                              {"v", spec::DType::bf16, shape, call.v}};
  outputs_.adopt(path);
  write_safetensors(path, tensors,
                    {{"grid", std::to_string(call.grid.t) + "," + std::to_string(call.grid.h) +
                                  "," + std::to_string(call.grid.w)},
                     {"layout", "HND"},
                     {"layer", std::to_string(call.layer)},
                     {"step", std::to_string(step)},
                     {"steps", std::to_string(options_.steps)},
                     {"class", branch == 0 ? options_.class_name : ""},
                     {"seed", std::to_string(options_.seeds.front())},
                     {"recipe", options_.recipes.front()},
                     {"rope", "applied"},
                     {"source", "vcattn generate, examples/tiny_video_dit"}});
}

}  // namespace vca::tools
