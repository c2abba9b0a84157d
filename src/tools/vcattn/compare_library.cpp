// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/compare_library.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tools/vcattn/library_error.hpp"

namespace vca::tools {
namespace {

vca_tensor tensor_of(const spec::TensorView& view) {
  vca_tensor t = {};
  t.data = const_cast<void*>(view.data);  // inputs are never written (vca.h)
  t.dtype = static_cast<int32_t>(view.dtype);
  for (size_t i = 0; i < 4; ++i) {
    t.shape[i] = view.shape[i];
    t.stride[i] = view.stride[i];
  }
  return t;
}

void check(vca_status status, const RecipeChoice& choice) {
  if (status != VCA_OK) throw library_error("the library refused recipe " + choice.label + ": ");
}

}  // namespace

vca_attn_desc library_desc(const CompareInput& in, const RecipeChoice& choice,
                           const std::array<int64_t, 3>& grid, int threads) {
  vca_attn_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.q = tensor_of(in.q);
  desc.k = tensor_of(in.k);
  desc.v = tensor_of(in.v);
  desc.device = VCA_DEVICE_CPU;
  desc.recipe = static_cast<int32_t>(choice.recipe->id);
  desc.hadamard = choice.hadamard ? 1 : -1;
  desc.num_threads = threads;
  if (vca_grouping_parse(spec::to_string(choice.grouping), &desc.grouping) != VCA_OK)
    desc.grouping = VCA_GROUPING_DEFAULT;
  for (size_t i = 0; i < 3; ++i) desc.grid[i] = grid[i];
  return desc;
}

double time_library_call(const CompareInput& in, const RecipeChoice& choice,
                         const std::array<int64_t, 3>& grid, int threads) {
  vca_attn_desc desc = library_desc(in, choice, grid, threads);
  const auto elements = static_cast<size_t>(in.batches * in.heads_q * in.tokens_q * in.head_dim);
  std::vector<std::byte> output(elements * static_cast<size_t>(spec::dtype_bytes(in.q.dtype)));
  spec::TensorView o = in.q;
  o.data = output.data();
  const int64_t d = in.head_dim, s = in.tokens_q, h = in.heads_q;
  o.stride = {h * s * d, s * d, d, 1};
  desc.o = tensor_of(o);
  size_t bytes = 0;
  check(vca_attn_workspace(&desc, &bytes), choice);
  constexpr size_t kAlignment = 64;  // vca_attn_workspace
  std::vector<std::byte> memory(bytes + kAlignment);
  void* workspace = memory.data();
  size_t space = memory.size();
  std::align(kAlignment, bytes, workspace, space);
  const auto start = std::chrono::steady_clock::now();
  check(vca_attn_run(&desc, workspace, bytes, nullptr), choice);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace vca::tools
