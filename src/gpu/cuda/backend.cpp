// SPDX-License-Identifier: Apache-2.0
// Requests to the preprocessing passes and the sm_90 attention kernel.
#include "gpu/backend.hpp"

#include "core/break_even.hpp"
#include "core/checked.hpp"
#include "core/hash.hpp"
#include "core/names.hpp"
#include "core/status.hpp"
#include "core/tensor_check.hpp"
#include "core/workspace.hpp"
#include "gpu/cuda/device.hpp"
#include "kernels/group/launch.hpp"
#include "kernels/prep/launch.hpp"
#include "kernels/sm90/launch.hpp"

namespace vca::gpu {
namespace {

using core::Request;
using kernels::AttentionParams;
using kernels::prep::PrepParams;

// What cudaMalloc promises; bulk copies need no more in global memory.
constexpr int64_t kWorkspaceAlign = 256;

// What is claimed of the whole way through the C ABI on a device. "measured" takes a result file of
// tests/device/run.sh in tests/device/results in which device_capi_test passed
// (tests/python/test_device_results.py holds this line to it).
constexpr const char* kEvidence = "measured";

const char* schedule_of(const spec::Recipe& recipe) {
  if (recipe.reference == spec::Reference::block_max)
    return "block-local maximum, O*alpha then fma(T,w,O), means every 8 blocks";
  if (recipe.v_smooth())
    return "running maximum, accumulator flushed and means restored every 8 blocks";
  return "running maximum, two-level per block of 128, quad-column FP32 sums";
}

const char* mma_text(const spec::Recipe& recipe) {
  if (!recipe.integer_scores())
    return "QK fused_trunc F13 (e4m3 wgmma), PV fused_trunc F13 (e4m3 wgmma)";
  if (!recipe.v_smooth()) return "QK exact_int32, PV fused_trunc F13 (e4m3 wgmma)";
  return "QK exact_int32, PV fused_trunc F13 (e4m3 wgmma), means fused_trunc F25 (tf32 wgmma)";
}

// Why a recipe has no kernel, and what to take instead.
std::string recipe_refusal(const spec::Recipe& recipe) {
  std::string why;
  if (recipe.id == spec::RecipeId::vc8_hq)
    why =
        "unsigned P times INT8 values needs an integer PV product, which no kernel here has; the "
        "CPU backend runs it, and vc8 is the most accurate recipe on the GPU";
  else if (recipe.id == spec::RecipeId::bf16)
    why = "it is left to the framework's own BF16 attention";
  else if (recipe.id == spec::RecipeId::exact)
    why = "it is the FP64 reference of the CPU backend";
  else
    why = "E4M3 scores by groups are for chips without fast INT8; vc8 is the same with INT8";
  return "recipe " + std::string(recipe.name) + " has no sm_90 kernel: " + why;
}

bool ragged(const Request& request) {
  return static_cast<int64_t>(request.device_subs.size()) != request.problem.batches;
}

PrepParams prep_params(const Request& request);

std::string grouping_refusal(const Request& request) {
  const spec::Problem& p = request.problem;
  if (!p.recipe->v_smooth()) return "";
  if (!kernels::group::supports(p.grouping))
    return std::string("grouping ") + core::grouping_name(core::grouping_number(p.grouping)) +
           " has no kernels; auto, vsmooth, kdtree, kmeans, cubes and identity have, and the CPU "
           "backend runs it";
  if (p.grouping == spec::Grouping::identity) return "";
  // Counters of a counting sort lie in shared memory, and so does what matching knows of the
  // blocks.
  const PrepParams params = prep_params(request);
  const kernels::prep::Layout layout(params);
  const bool tree = p.grouping == spec::Grouping::kdtree;
  const int64_t labels = tree ? layout.group->max_blocks : layout.group->max_labels;
  if (labels > kernels::group::kMaxLabels)
    return "grouping a segment in " + std::to_string(labels) + " buckets, of at most " +
           std::to_string(kernels::group::kMaxLabels) + " (128 tokens each); ask for identity";
  return "";
}

std::string feature_refusal(const Request& request) {
  const vca_attn_desc& d = request.desc;
  const spec::Problem& p = request.problem;
  if (!kernels::sm90::has_kernel(*p.recipe) || !kernels::prep::supports(*p.recipe))
    return recipe_refusal(*p.recipe);
  const std::string grouping = grouping_refusal(request);
  if (!grouping.empty()) return grouping;
  if (d.block_mask != nullptr) return "block_mask is not on sm_90 in this version";
  if ((d.flags & VCA_CHECK_FINITE) != 0)
    return "VCA_CHECK_FINITE: the answer needs a synchronisation, which no call on a device makes";
  if (d.energy_removed != nullptr && ragged(request))
    return "energy_removed with SEQUENCE segments is not on sm_90 in this version";
  // The kernel stores pairs of 16-bit values.
  if (d.o.dtype != VCA_FP32 && reinterpret_cast<uintptr_t>(d.o.data) % 4 != 0)
    return "o.data is not 4-byte aligned, as the sm_90 kernel stores it";
  if (p.h_q > INT32_MAX || static_cast<int64_t>(request.device_subs.size()) > INT32_MAX)
    return "more than 2147483647 heads, or batches and sequences";
  return "";
}

void require_runnable(const Request& request) {
  const std::string reason = refusal(request);
  if (reason.empty()) return;
  core::fail(VCA_ERR_UNSUPPORTED,
             {"CUDA device " + std::to_string(request.desc.device) + " cannot run this problem",
              reason, "", "vca_attn_explain lists every candidate; VCA_DEVICE_CPU runs them all"});
}

// Every size inside preprocessing is a sum of products of these.
void check_sizes(const Request& request) {
  const spec::Problem& p = request.problem;
  const auto mul = [](int64_t a, int64_t b) { return core::checked_mul(a, b, "workspace"); };
  const auto n_subs = static_cast<int64_t>(request.device_subs.size());
  const auto ranges = static_cast<int64_t>(request.key_ranges.size());
  // Each range of each sub-problem may end in a tile of its own.
  const int64_t tails = mul(n_subs, ranges + 1);
  for (const auto& [heads, rows] : {std::pair{p.h_q, p.s_q}, std::pair{p.h_kv, p.s_kv}}) {
    const int64_t tiles = core::checked_add(mul(p.batches, rows / 128), tails, "workspace");
    // 128 rows of 128 bytes; eightfold, for everything that goes with them.
    mul(mul(heads + 1, tiles), 8 * 128 * 128);
  }
}

// What a device state depends on.
uint64_t state_hash(const Request& request) {
  const spec::Problem& p = request.problem;
  core::Hash h;
  for (const int64_t x : {p.batches, p.h_kv, p.s_kv, int64_t{p.d}}) h.add(x);
  h.add(static_cast<int64_t>(p.grouping));
  for (const core::KeyRange& r : request.key_ranges) {
    h.add(r.begin);
    h.add(r.len);
  }
  for (const core::DeviceSub& s : request.device_subs) {
    h.add(s.batch);
    h.add(s.first_range);
    h.add(s.n_ranges);
  }
  return h.value();
}

kernels::group::Request grouping_of(const Request& request) {
  const spec::Problem& p = request.problem;
  kernels::group::Request out;
  if (!p.recipe->v_smooth()) return out;
  out.kind = p.grouping == spec::Grouping::automatic ? spec::Grouping::vsmooth : p.grouping;
  out.grid = p.grid;
  for (const core::KeyRange& r : request.key_ranges) out.video.push_back(r.video);
  out.state = request.desc.state;
  out.state_hash = state_hash(request);
  out.policy = request.policy;
  out.step = request.desc.step;
  out.regrouped = request.desc.regrouped;
  return out;
}

PrepParams prep_params(const Request& request) {
  const vca_attn_desc& d = request.desc;
  const spec::Problem& p = request.problem;
  PrepParams out;
  out.q = p.q;
  out.k = p.k;
  out.v = p.v;
  out.scale = p.scale;
  out.recipe = p.recipe;
  out.hadamard = p.hadamard;
  out.rope = p.rope.convention != spec::RopeConvention::none ? &p.rope : nullptr;
  for (const core::KeyRange& r : request.key_ranges) out.segments.push_back({r.begin, r.len});
  for (const core::DeviceSub& s : request.device_subs)
    out.subs.push_back({s.batch, s.q_begin, s.q_len, s.first_range, s.n_ranges});
  out.kv_lens = d.kv_lens;
  out.key_mask = d.key_mask;
  out.lse = request.lse();
  out.energy_removed = d.energy_removed;
  out.grouping = grouping_of(request);
  return out;
}

kernels::group::StateLayout state_layout(const Request& request) {
  const kernels::prep::Layout layout(prep_params(request));
  int64_t blocks = 0;
  for (const kernels::prep::SubExtra& e : layout.sub_extra) blocks += e.capacity;
  return {layout.n_units, blocks * request.problem.h_kv * 128};
}

void check_room(const Request& request, const void* workspace, size_t bytes) {
  core::require_room(gpu::workspace_bytes(request), kWorkspaceAlign, "cudaMalloc gives it",
                     workspace, bytes);
  require_on_device("workspace", workspace, request.desc.device);
}

// A workspace laid over a tensor would change it under the caller's hands. Before attend the inputs
// may be gone, and before it nothing is written to the outputs.
void check_apart(const Request& request, const void* workspace, bool inputs, bool outputs) {
  const vca_attn_desc& d = request.desc;
  const spec::Problem& p = request.problem;
  const core::Region memory =
      core::region_of_array("workspace", workspace, gpu::workspace_bytes(request), 1);
  if (inputs) {
    check_disjoint(memory, core::region_of("q", d.q));
    check_disjoint(memory, core::region_of("k", d.k));
    check_disjoint(memory, core::region_of("v", d.v));
    core::require_apart_from_arrays(request, memory,
                                    d.state != nullptr ? state_layout(request).bytes : 0);
  }
  if (outputs) {
    check_disjoint(memory, core::region_of("o", d.o));
    check_disjoint(memory, core::region_of_array("lse", d.lse, p.batches * p.h_q * p.s_q, 4));
  }
}

void prepare_on(const Request& request, void* workspace, cudaStream_t stream) {
  const vca_attn_desc& d = request.desc;
  const int device = d.device;
  require_on_device("q.data", d.q.data, device);
  require_on_device("k.data", d.k.data, device);
  require_on_device("v.data", d.v.data, device);
  require_on_device("kv_lens", d.kv_lens, device);
  require_on_device("key_mask", d.key_mask, device);
  require_on_device("rope.cos", request.problem.rope.cos, device);
  require_on_device("rope.sin", request.problem.rope.sin, device);
  require_on_device("energy_removed", d.energy_removed, device);
  require_on_device("regrouped", d.regrouped, device);
  require_on_device("state", d.state, device);
  require_on_device("step", d.step, device);
  const int64_t heads = request.problem.batches * request.problem.h_kv;
  if (d.regrouped != nullptr && heads > 0)
    check(cudaMemsetAsync(d.regrouped, 0, static_cast<size_t>(heads), stream), "cudaMemsetAsync");
  check(kernels::prep::prepare(prep_params(request), workspace, stream), "preprocessing");
}

void attend_on(const Request& request, void* workspace, cudaStream_t stream) {
  const vca_attn_desc& d = request.desc;
  const spec::Problem& p = request.problem;
  require_on_device("o.data", d.o.data, d.device);
  require_on_device("lse", d.lse, d.device);
  const PrepParams prepared = prep_params(request);
  AttentionParams params = kernels::prep::attention_params(prepared, workspace);
  const auto stride = [&d](int i) { return d.o.shape[i] > 1 ? d.o.stride[i] : 0; };
  params.o = d.o.data;
  params.o_stride_b = stride(0);
  params.o_stride_h = stride(1);
  params.o_stride_s = stride(2);
  params.o_type = static_cast<kernels::OutType>(d.o.dtype);
  params.lse = d.lse;
  check(kernels::sm90::launch_attention(*p.recipe, p.d_pad, params, stream), "attention");
  if (!kernels::prep::never_empty(prepared))
    check(kernels::prep::zero_rows(params, stream), "rows without keys");
}

}  // namespace

bool built() { return true; }

std::string refusal(const Request& request) {
  if (!request.on_device()) return "the tensors are in host memory";
  if (request.target != spec::Target::sm90)
    return "target " + std::string(spec::to_string(request.target)) + " was asked for";
  std::string reason = feature_refusal(request);
  if (reason.empty()) reason = core::auto_declines(request);
  return reason.empty() ? device_refusal(request.desc.device) : reason;
}

Texts texts(const Request& request) {
  require_runnable(request);
  const spec::Recipe& recipe = *request.problem.recipe;
  return {"sm90", schedule_of(recipe), mma_text(recipe), kEvidence};
}

int64_t workspace_bytes(const Request& request) {
  require_runnable(request);
  check_sizes(request);
  return kernels::prep::workspace_bytes(prep_params(request));
}

void prepare(const Request& request, void* workspace, size_t bytes, void* stream) {
  require_runnable(request);
  const DeviceScope scope(request.desc.device);
  check_room(request, workspace, bytes);
  check_apart(request, workspace, true, false);
  prepare_on(request, workspace, static_cast<cudaStream_t>(stream));
}

void attend(const Request& request, void* workspace, size_t bytes, void* stream) {
  require_runnable(request);
  const DeviceScope scope(request.desc.device);
  check_room(request, workspace, bytes);
  check_apart(request, workspace, false, true);
  attend_on(request, workspace, static_cast<cudaStream_t>(stream));
}

void run(const Request& request, void* workspace, size_t bytes, void* stream) {
  require_runnable(request);
  const DeviceScope scope(request.desc.device);
  check_room(request, workspace, bytes);
  check_apart(request, workspace, true, true);
  prepare_on(request, workspace, static_cast<cudaStream_t>(stream));
  attend_on(request, workspace, static_cast<cudaStream_t>(stream));
}

int64_t state_bytes(const Request& request) {
  require_runnable(request);
  check_sizes(request);
  return state_layout(request).bytes;
}

void init_state(const Request& request, void* state, size_t bytes, void* stream) {
  require_runnable(request);
  const DeviceScope scope(request.desc.device);
  const kernels::group::StateLayout layout = state_layout(request);
  if (state == nullptr || bytes < static_cast<size_t>(layout.bytes) ||
      reinterpret_cast<uintptr_t>(state) % kWorkspaceAlign != 0)
    core::fail(VCA_ERR_STATE, {"group state buffer is missing, too small or not aligned",
                               state == nullptr ? "NULL" : std::to_string(bytes) + " bytes",
                               std::to_string(layout.bytes) + " bytes or more at a multiple of 256",
                               "ask vca_group_state_bytes(); cudaMalloc aligns"});
  require_on_device("state", state, request.desc.device);
  check(kernels::group::init_state(state, state_hash(request), layout,
                                   static_cast<cudaStream_t>(stream)),
        "group state");
}

bool owns(const void* memory) {
  cudaPointerAttributes attributes{};
  const bool known = cudaPointerGetAttributes(&attributes, memory) == cudaSuccess;
  cudaGetLastError();  // host memory that CUDA does not know is an error to some versions
  return known && attributes.type != cudaMemoryTypeUnregistered &&
         attributes.type != cudaMemoryTypeHost;
}

void reset_state(void* state, size_t bytes, void* stream) {
  constexpr auto kHeader = static_cast<size_t>(kernels::group::kAlign_bytes);
  const uintptr_t beyond = reinterpret_cast<uintptr_t>(state) % kWorkspaceAlign;
  if (bytes < kHeader || beyond != 0)
    core::fail(
        VCA_ERR_STATE,
        {"group state buffer is shorter than its header or not aligned",
         std::to_string(bytes) + " bytes at an address that leaves " + std::to_string(beyond) +
             " modulo " + std::to_string(kWorkspaceAlign),
         "the " + std::to_string(kHeader) + " bytes of the header or more, at a multiple of " +
             std::to_string(kWorkspaceAlign),
         "give the buffer and the bytes that vca_group_state_init() got"});
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, state), "cudaPointerGetAttributes");
  const DeviceScope scope(attributes.device);
  check(kernels::group::reset_state(state, static_cast<int64_t>(bytes),
                                    static_cast<cudaStream_t>(stream)),
        "group state");
}

}  // namespace vca::gpu
