// SPDX-License-Identifier: Apache-2.0
#include "examples/tiny_video_dit/attention.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
#include <utility>

namespace tiny_video_dit {
namespace {

constexpr size_t kAlignment = 64;

void check(vca_status status) {
  if (status != VCA_OK) throw AttentionError(status, vca_last_error());
}

// q, k or v: [1, heads, tokens, head_dim] without gaps.
vca_tensor operand(const AttentionCall& call, const void* data) {
  const int64_t tokens = call.grid.tokens();
  vca_tensor tensor = {};
  // The library never writes an input; the view's pointer serves outputs too.
  tensor.data = const_cast<void*>(data);
  tensor.dtype = call.operands == Operands::kBf16 ? VCA_BF16 : VCA_FP32;
  const int64_t shape[4] = {1, call.heads, tokens, call.head_dim};
  const int64_t stride[4] = {call.heads * tokens * call.head_dim, tokens * call.head_dim,
                             call.head_dim, 1};
  std::copy(shape, shape + 4, tensor.shape);
  std::copy(stride, stride + 4, tensor.stride);
  return tensor;
}

// o: the same view of [tokens][heads][head_dim], which the next layer reads row by row.
vca_tensor output(const AttentionCall& call) {
  vca_tensor tensor = operand(call, call.o);
  tensor.dtype = VCA_FP32;
  tensor.stride[0] = call.grid.tokens() * call.heads * call.head_dim;
  tensor.stride[1] = call.head_dim;
  tensor.stride[2] = int64_t{call.heads} * call.head_dim;
  return tensor;
}

}  // namespace

struct VcaAttention::Buffer {
  explicit Buffer(size_t size)
      : bytes(size),
        data(size == 0 ? nullptr : ::operator new(size, std::align_val_t(kAlignment))) {}
  ~Buffer() { ::operator delete(data, std::align_val_t(kAlignment)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  size_t bytes;
  void* data;
};

void AttentionReport::add(const AttentionReport& other) {
  energy_removed += other.energy_removed;
  energy_heads += other.energy_heads;
  regroupings += other.regroupings;
  seconds += other.seconds;
}

VcaAttention::VcaAttention(AttentionOptions options) : options_(std::move(options)) {
  check(vca_recipe_parse(options_.recipe.c_str(), &recipe_, &hadamard_));
  options_.policy.struct_size = sizeof(vca_policy);
  reset();
}

VcaAttention::~VcaAttention() = default;

void VcaAttention::reset() {
  states_.clear();
  states_.resize(static_cast<size_t>(options_.layers) * options_.branches);
}

vca_attn_desc VcaAttention::describe(const AttentionCall& call, const int32_t* step, int branch) {
  energy_.assign(static_cast<size_t>(call.heads), NAN);
  regrouped_.assign(static_cast<size_t>(call.heads), 0);
  vca_attn_desc desc = {};
  desc.struct_size = sizeof(desc);
  desc.q = operand(call, call.q);
  desc.k = operand(call, call.k);
  desc.v = operand(call, call.v);
  desc.o = output(call);
  desc.device = VCA_DEVICE_CPU;
  desc.recipe = recipe_;
  desc.grouping = options_.grouping;
  desc.hadamard = hadamard_;
  desc.num_threads = options_.threads;
  desc.grid[0] = call.grid.t;
  desc.grid[1] = call.grid.h;
  desc.grid[2] = call.grid.w;
  desc.energy_removed = energy_.data();
  desc.regrouped = regrouped_.data();
  desc.state = state_for(desc, call.layer, branch);
  if (desc.state != nullptr) {
    desc.policy = &options_.policy;
    desc.step = step;
  }
  return desc;
}

void* VcaAttention::state_for(const vca_attn_desc& desc, int layer, int branch) {
  std::unique_ptr<Buffer>& state =
      states_[static_cast<size_t>(options_.policy.share_cfg != 0 ? 0 : branch) * options_.layers +
              layer];
  if (!state) {
    size_t bytes = 0;
    check(vca_group_state_bytes(&desc, &bytes));
    state = std::make_unique<Buffer>(bytes);
    if (bytes > 0) check(vca_group_state_init(&desc, state->data, bytes, nullptr));
  }
  return state->data;
}

AttentionReport VcaAttention::run(const AttentionCall& call, int step, int branch) {
  const auto start = std::chrono::steady_clock::now();
  const int32_t step_number = step;
  const vca_attn_desc desc = describe(call, &step_number, branch);
  size_t bytes = 0;
  check(vca_attn_workspace(&desc, &bytes));
  if (!workspace_ || workspace_->bytes < bytes) workspace_ = std::make_unique<Buffer>(bytes);
  if (description_.kernel.empty()) {
    vca_attn_info info = {};
    info.struct_size = sizeof(info);
    check(vca_attn_query(&desc, &info));
    const char* grouping = vca_grouping_str(info.grouping);
    description_ = {grouping == nullptr ? "" : grouping, info.kernel};
  }
  check(vca_attn_run(&desc, workspace_->data, workspace_->bytes, nullptr));

  AttentionReport report;
  for (int head = 0; head < call.heads; ++head) {
    report.regroupings += regrouped_[head];
    if (std::isnan(energy_[head])) continue;
    report.energy_removed += energy_[head];
    ++report.energy_heads;
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace tiny_video_dit
