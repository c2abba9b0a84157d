// SPDX-License-Identifier: Apache-2.0
// q, k and v of the reference's layers as files for `vcattn compare`.
#pragma once

#include "examples/tiny_video_dit/dit.hpp"
#include "tools/vcattn/generate_options.hpp"
#include "tools/vcattn/generate_output.hpp"

namespace vca::tools {

class CaptureWriter {
 public:
  // Both are borrowed.
  CaptureWriter(const GenerateOptions& options, OutputSet& outputs)
      : options_(options), outputs_(outputs) {}

  // Writes DIR/layer-L-step-S.safetensors when the step was asked for, and for the second branch of
  // guidance, which has no class, DIR/layer-L-step-S-without-class.safetensors.
  void observe(const tiny_video_dit::AttentionCall& call, int step, int branch);

 private:
  const GenerateOptions& options_;
  OutputSet& outputs_;
};

}  // namespace vca::tools
