// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/checked.hpp"
#include "core/names.hpp"
#include "core/parallel.hpp"
#include "core/request.hpp"
#include "core/status.hpp"
#include "core/structs.hpp"
#include "core/subproblems.hpp"
#include "core/tensor_check.hpp"
#include "gpu/backend.hpp"

namespace vca::core {
namespace {

// Sizes of the first published structs: no smaller caller exists.
constexpr size_t kOldestDesc = sizeof(vca_attn_desc);
constexpr size_t kOldestRope = sizeof(vca_rope);
constexpr size_t kOldestPolicy = sizeof(vca_policy);

void check_tensors(const vca_attn_desc& d, Use use) {
  const bool inputs = use == Use::prepare || use == Use::run || use == Use::ref;
  const bool output = use == Use::attend || use == Use::run;
  check_tensor("q", d.q, inputs, false);
  check_tensor("k", d.k, inputs, false);
  check_tensor("v", d.v, inputs, false);
  // Only the functions that write o look at it.
  if (output) check_tensor("o", d.o, true, true);
}

void same_extent(const char* a, int64_t got, const char* b, int64_t want, const char* hint) {
  if (got == want) return;
  invalid(std::string(a) + " differs from " + b, to_text(got), to_text(want), hint);
}

void check_shapes(const vca_attn_desc& d, Use use) {
  const int64_t *q = d.q.shape, *k = d.k.shape, *v = d.v.shape, *o = d.o.shape;
  if (q[3] < 1 || q[3] > spec::kMaxHeadDim) {
    invalid("q.shape[3] (head_dim) is not supported", to_text(q[3]), "1 .. 128",
            "use the framework's own attention for this layer");
  }
  if (k[3] != q[3]) same_extent("k.shape[3] (head_dim)", k[3], "q's", q[3], "");
  if (v[3] != q[3]) {
    invalid("v.shape[3] differs from q's head_dim (D_v != D_qk)", to_text(v[3]), to_text(q[3]),
            "value blocks and key blocks share one tile format; pad v to head_dim");
  }
  const char* const layout_hint = "check the layout: shapes are [B, H, S, D], whatever the strides";
  same_extent("k.shape[0] (B)", k[0], "q's", q[0], layout_hint);
  same_extent("v.shape[0] (B)", v[0], "q's", q[0], layout_hint);
  same_extent("v.shape[1] (H_kv)", v[1], "k's", k[1], layout_hint);
  same_extent("v.shape[2] (S_kv)", v[2], "k's", k[2], layout_hint);
  if (q[1] > 0 && (k[1] == 0 || q[1] % k[1] != 0)) {
    invalid("q's heads are no multiple of k's (H_q % H_kv != 0)",
            "H_q = " + to_text(q[1]) + ", H_kv = " + to_text(k[1]), "H_q a multiple of H_kv",
            layout_hint);
  }
  for (const auto& [axis, shape] : {std::pair{"q", q}, std::pair{"k", k}}) {
    const int64_t batches = std::max<int64_t>(shape[0], 1), heads = std::max<int64_t>(shape[1], 1);
    if (batches <= kMaxHeads && heads <= kMaxHeads && batches * heads <= kMaxHeads) continue;
    invalid(std::string(axis) + " has too many batches times heads",
            "B = " + to_text(shape[0]) + ", H = " + to_text(shape[1]),
            "B * H at most " + to_text(kMaxHeads), "make several calls, each for a part of them");
  }
  if (q[2] > INT32_MAX || k[2] > INT32_MAX) {
    invalid("S is too long for 32-bit token numbers", to_text(q[2] > k[2] ? q[2] : k[2]),
            "at most 2147483647", "split the sequence and merge by LSE");
  }
  if (d.k.dtype != d.q.dtype || d.v.dtype != d.q.dtype) {
    invalid("q, k and v differ in dtype",
            std::string(dtype_name(d.q.dtype)) + ", " + dtype_name(d.k.dtype) + ", " +
                dtype_name(d.v.dtype),
            "one dtype for all three", "cast them to one type first");
  }
  if (use != Use::attend && use != Use::run) return;
  for (int i = 0; i < 4; ++i) {
    if (o[i] == q[i]) continue;
    invalid("o's shape differs from q's at axis " + std::to_string(i), to_text(o[i]), to_text(q[i]),
            "o is [B, H_q, S_q, D]");
  }
}

void check_device(const vca_attn_desc& d, Use use) {
  const bool host = d.device == VCA_DEVICE_CPU;
  if (use != Use::explain && !host && !gpu::built()) {
    fail(VCA_ERR_UNSUPPORTED,
         {"device is not the CPU and this build has no CUDA kernels", to_text(int64_t{d.device}),
          "VCA_DEVICE_CPU (-1)", "copy the tensors to host memory and set device = -1"});
  }
  if (d.device < VCA_DEVICE_CPU) {
    invalid("device is no CUDA ordinal", to_text(int64_t{d.device}),
            "VCA_DEVICE_CPU (-1), or 0 and up", "");
  }
  if (use == Use::ref && !host) {
    fail(VCA_ERR_UNSUPPORTED,
         {"vca_ref_attn reads host memory", "CUDA device " + to_text(int64_t{d.device}),
          "VCA_DEVICE_CPU (-1)", "copy the tensors to host memory and name the target instead"});
  }
  if (host && use != Use::ref && use != Use::explain && d.target != VCA_TARGET_AUTO &&
      d.target != VCA_TARGET_CPU) {
    resolve_target(d.target);  // an unknown number is another error
    fail(VCA_ERR_UNSUPPORTED,
         {gpu::built() ? "target cannot run: the tensors are in host memory"
                       : "target cannot run: this build has no CUDA kernels",
          target_name(d.target), "auto or cpu",
          "vca_ref_attn follows the arithmetic of every target on the CPU, row by row"});
  }
}

void check_scalars(const vca_attn_desc& d) {
  if (d.has_scale != 0 && d.has_scale != 1) {
    invalid("has_scale is not a boolean", to_text(int64_t{d.has_scale}), "0 or 1", "");
  }
  // Beyond it the scores of ordinary inputs leave FP32 and every output is NaN.
  constexpr double kMaxScale = 0x1p112;
  if (d.has_scale == 1 && !(std::fabs(d.scale) <= kMaxScale)) {
    invalid("scale is not finite or too large", to_text(d.scale), "a magnitude up to 2^112",
            "1/sqrt(head_dim) is usual");
  }
  if (d.hadamard < -1 || d.hadamard > 1) {
    invalid("hadamard is out of range", to_text(int64_t{d.hadamard}), "-1, 0 or 1", "");
  }
  if ((d.flags & ~VCA_CHECK_FINITE) != 0) {
    invalid("flags has an unknown bit", to_text(int64_t{d.flags}), "VCA_CHECK_FINITE (1)", "");
  }
  if (d.num_threads < 0) {
    invalid("num_threads is negative", to_text(int64_t{d.num_threads}), ">= 0 (0: OpenMP's own)",
            "");
  }
}

void resolve_rope(const vca_attn_desc& d, Use use, Request& request) {
  if (d.rope == nullptr) return;
  const vca_rope r = read_struct(d.rope, kOldestRope, "vca_rope");
  if (r.convention < VCA_ROPE_NONE || r.convention > VCA_ROPE_HALF) {
    invalid("rope.convention is unknown", to_text(int64_t{r.convention}),
            "NONE (0), INTERLEAVED (1), HALF (2)", "");
  }
  if (r.convention == VCA_ROPE_NONE) return;
  const spec::Problem& p = request.problem;
  if (p.s_q != p.s_kv) {
    invalid("rope needs as many queries as keys",
            "S_q = " + to_text(p.s_q) + ", S_kv = " + to_text(p.s_kv), "S_q == S_kv",
            "rotate q and k before the call in cross attention");
  }
  std::array<int, 3> axis_dim{};
  int64_t rotated = 0;
  for (size_t i = 0; i < 3; ++i) {
    if (r.axis_dim[i] < 0 || r.axis_dim[i] % 2 != 0 || r.axis_dim[i] > p.d) {
      invalid("rope.axis_dim[" + std::to_string(i) + "] is not allowed",
              to_text(int64_t{r.axis_dim[i]}), "an even number, 0 .. head_dim", "");
    }
    axis_dim[i] = r.axis_dim[i];
    rotated += r.axis_dim[i];
  }
  if (rotated < 2 || rotated > p.d) {
    invalid("rope.axis_dim does not sum to a number of channels", to_text(rotated),
            "2 .. head_dim = " + to_text(int64_t{p.d}), "Wan2.2 uses {44, 42, 42}");
  }
  const auto convention = static_cast<spec::RopeConvention>(r.convention);
  if ((r.cos == nullptr) != (r.sin == nullptr)) {
    invalid("rope has one table of two", r.cos == nullptr ? "sin without cos" : "cos without sin",
            "both or neither", "");
  }
  if (r.cos != nullptr) {
    request.problem.rope =
        spec::make_rope_from_tables(convention, static_cast<int>(rotated), r.cos, r.sin, p.s_q);
    return;
  }
  if (!(r.theta > 0.0) || !std::isfinite(r.theta)) {
    invalid("rope.theta is not a positive number", to_text(r.theta), "> 0 (10000 is usual)", "");
  }
  int64_t tokens = 1;
  for (int i = 0; i < 3; ++i) {
    if (r.grid[i] < 1) {
      invalid("rope.grid[" + std::to_string(i) + "] is not positive", to_text(r.grid[i]), ">= 1",
              "use {T, H, W} of the rotated tokens, or give tables");
    }
    tokens = checked_mul(tokens, r.grid[i], "rope.grid");
  }
  if (r.begin < 0 || checked_add(r.begin, tokens, "rope.begin") > p.s_kv) {
    invalid("rope's tokens do not lie inside the sequence",
            "[" + to_text(r.begin) + ", " + to_text(r.begin + tokens) + ")",
            "[0, S = " + to_text(p.s_kv) + ")", "begin + T*H*W must not exceed S");
  }
  if (!request.on_device() && (use == Use::query || use == Use::explain)) return;
  request.problem.rope =
      spec::make_rope(convention, axis_dim, r.theta, {r.grid[0], r.grid[1], r.grid[2]}, r.begin);
}

// What belongs together; functions that size or make a group state are called before there is one.
void check_policy_pointers(const vca_attn_desc& d) {
  if (d.policy != nullptr && (d.state == nullptr || d.step == nullptr)) {
    invalid("policy needs `state` and `step`",
            std::string(d.state == nullptr ? "no state" : "state") + ", " +
                (d.step == nullptr ? "no step" : "step"),
            "all three, or none", "without a group state every call forms a new order");
  }
  if ((d.state == nullptr) != (d.step == nullptr)) {
    invalid("state and step belong together",
            d.state == nullptr ? "step without state" : "state without step", "both or neither",
            "the step decides whether the kept order is used");
  }
}

void resolve_policy(const vca_attn_desc& d, Use use, Request& request) {
  if (use != Use::query && use != Use::explain) check_policy_pointers(d);
  Policy& policy = request.policy;
  policy.after =
      request.problem.recipe->reuse_after_window ? VCA_AFTER_REUSE : VCA_AFTER_REFRESH_ON_DECAY;
  if (d.policy != nullptr) {
    const vca_policy p = read_struct(d.policy, kOldestPolicy, "vca_policy");
    const auto range = [](const char* field, int64_t got, bool ok, const char* allowed) {
      if (!ok)
        invalid(std::string("policy.") + field + " is out of range", to_text(got), allowed, "");
    };
    range("steps", p.steps, p.steps >= 0, ">= 1 (0: 1)");
    range("window", p.window, p.window >= -1, ">= 1, 0 (ceil(steps/4)) or -1 (none)");
    range("refresh", p.refresh, p.refresh >= 0, ">= 1 (0: 1)");
    range("after", p.after, p.after >= VCA_AFTER_REFRESH_ON_DECAY && p.after <= VCA_AFTER_IDENTITY,
          "REFRESH_ON_DECAY (0), REUSE (1), IDENTITY (2)");
    range("share_cfg", p.share_cfg, p.share_cfg == 0 || p.share_cfg == 1, "0 or 1");
    if (!(p.decay >= 0.0f && p.decay <= 1.0f)) {
      invalid("policy.decay is out of range", to_text(static_cast<double>(p.decay)),
              "0 (the default, 0.9) .. 1", "");
    }
    policy.steps = p.steps == 0 ? 1 : p.steps;
    policy.window = p.window == 0 ? default_window(policy.steps) : p.window == -1 ? 0 : p.window;
    policy.refresh = p.refresh == 0 ? 1 : p.refresh;
    policy.after = p.after;
    policy.decay = p.decay == 0.0f ? 0.9 : static_cast<double>(p.decay);
    policy.share_cfg = p.share_cfg == 1;
  }
  if (d.step != nullptr && !request.on_device() && (use == Use::prepare || use == Use::run)) {
    request.step = *d.step;
    if (request.step < 0) {
      invalid("*step is negative", to_text(request.step), ">= 0", "count denoising steps from 0");
    }
  }
}

spec::TensorView view_of(const vca_tensor& t) {
  spec::TensorView v;
  v.data = t.data;
  v.dtype = static_cast<spec::DType>(t.dtype);
  for (size_t i = 0; i < 4; ++i) {
    v.shape[i] = t.shape[i];
    v.stride[i] = t.shape[i] > 1 ? t.stride[i] : 0;
  }
  v.stride[3] = 1;
  return v;
}

void check_outputs_disjoint(const vca_attn_desc& d, Use use) {
  const int64_t rows =
      checked_mul(checked_mul(d.q.shape[0], d.q.shape[1], "lse"), d.q.shape[2], "lse");
  const int64_t heads = checked_mul(d.k.shape[0], d.k.shape[1], "energy_removed");
  const Region lse = region_of_array("lse", d.lse, rows, sizeof(float));
  const Region energy = region_of_array("energy_removed", d.energy_removed, heads, sizeof(float));
  const Region regrouped = region_of_array("regrouped", d.regrouped, heads, 1);
  // After prepare the inputs may be gone, and the output may even have taken their place.
  std::vector<Region> inputs, outputs;
  if (use != Use::attend) inputs = {region_of("q", d.q), region_of("k", d.k), region_of("v", d.v)};
  if (use != Use::prepare) outputs = {region_of("o", d.o), lse};
  if (use != Use::attend) outputs.insert(outputs.end(), {energy, regrouped});
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const Region& input : inputs) check_disjoint(outputs[i], input);
    for (size_t j = i + 1; j < outputs.size(); ++j) check_disjoint(outputs[i], outputs[j]);
  }
}

}  // namespace

Request validate(const vca_attn_desc* caller, Use use) {
  Request request{};
  request.desc = read_struct(caller, kOldestDesc, "vca_attn_desc");
  const vca_attn_desc& d = request.desc;
  const spec::Recipe& recipe = spec::recipe(resolve_recipe(d.recipe));
  check_device(d, use);
  check_scalars(d);
  request.target = request.on_device() && gpu::built() && d.target == VCA_TARGET_AUTO
                       ? spec::Target::sm90
                       : resolve_target(d.target);
  check_tensors(d, use);
  check_shapes(d, use);

  spec::Problem& p = request.problem;
  p.recipe = &recipe;
  p.grouping = resolve_grouping(d.grouping, recipe);
  p.hadamard = d.hadamard == 0 ? recipe.hadamard : d.hadamard == 1;
  // Rotation changes nothing where nothing is quantised.
  if (!recipe.quantised()) p.hadamard = false;
  p.set_tensors(view_of(d.q), view_of(d.k), view_of(d.v));
  if (d.has_scale == 1) p.scale = d.scale;
  request.threads = thread_count(d.num_threads);

  resolve_rope(d, use, request);
  resolve_policy(d, use, request);
  // Without a head nobody reads the tokens, and nothing but a shape says how many there are.
  expand_subproblems(request, use != Use::query && use != Use::explain && p.h_kv > 0);
  if (use == Use::run || use == Use::prepare || use == Use::attend) check_outputs_disjoint(d, use);
  if ((d.flags & VCA_CHECK_FINITE) != 0 && !request.on_device() && use != Use::query &&
      use != Use::explain && use != Use::attend) {
    check_finite("q", p.q, request.threads);
    check_finite("k", p.k, request.threads);
    check_finite("v", p.v, request.threads);
  }
  return request;
}

}  // namespace vca::core
