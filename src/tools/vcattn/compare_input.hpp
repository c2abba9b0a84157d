// SPDX-License-Identifier: Apache-2.0
// The tensors q, k, v of a dump, checked so far that everything behind can rely on them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>

#include "spec/problem.hpp"
#include "tools/vcattn/safetensors.hpp"

namespace vca::tools {

enum class Layout { hnd, nhd };  // [B, H, S, D] or [B, S, H, D] in the file

struct CompareInput {
  SafetensorsFile file;
  Layout layout;
  spec::TensorView q, k, v;  // always [B, H, S, D]
  int64_t batches, heads_q, heads_kv, tokens_q, tokens_kv;
  int head_dim;
};

// Opens the file, finds q, k and v, compares their shapes and looks for NaN and Inf. UserError on
// anything wrong.
CompareInput load_compare_input(const std::filesystem::path& path, Layout layout);

}  // namespace vca::tools
