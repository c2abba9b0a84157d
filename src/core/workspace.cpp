// SPDX-License-Identifier: Apache-2.0
#include "core/workspace.hpp"

#include <cstring>
#include <string>

#include "core/checked.hpp"
#include "core/exact.hpp"
#include "core/hash.hpp"
#include "core/status.hpp"

namespace vca::core {
namespace {

constexpr uint64_t kMagic = 0x3153574e54544143u;  // "CATTNWS1"

// Takes consecutive aligned arrays.
class Carver {
 public:
  explicit Carver(uint8_t* base) : at_(base) {}
  template <class T>
  T* take(int64_t elems) {
    if (elems == 0) return nullptr;
    T* const array = reinterpret_cast<T*>(at_);
    at_ += round_up(elems * static_cast<int64_t>(sizeof(T)), kWorkspaceAlign);
    return array;
  }

 private:
  uint8_t* at_;
};

int64_t array_bytes(int64_t elems, int64_t elem_bytes) {
  return round_up(checked_mul(elems, elem_bytes, "workspace"), kWorkspaceAlign);
}

int64_t kv_bytes(const spec::KvSizes& s) {
  return array_bytes(s.order, 4) + array_bytes(s.k_codes, 1) + array_bytes(s.k_scale, 4) +
         array_bytes(s.v_codes, 1) + array_bytes(s.mu, 4) + array_bytes(s.v_scale, 4) +
         array_bytes(s.s_v, 4) + array_bytes(s.k_offset, 4) + array_bytes(s.k_real, 4) +
         array_bytes(s.v_real, 4) + array_bytes(s.k_micro, 1) + array_bytes(s.v_micro, 1) +
         array_bytes(1, static_cast<int64_t>(sizeof(spec::KvOperands::Stats)));
}

int64_t q_bytes(const spec::QSizes& s) {
  return array_bytes(s.q_codes, 1) + array_bytes(s.q_scale, 4) + array_bytes(s.qk_offset, 4) +
         array_bytes(s.q_real, 4) + array_bytes(s.max_q_scale, 4) + array_bytes(s.q_micro, 1) +
         array_bytes(s.q_mean, 4);
}

}  // namespace

uint64_t problem_hash(const Request& request) {
  const spec::Problem& p = request.problem;
  Hash h;
  for (const int64_t x : {p.batches, p.h_q, p.h_kv, p.s_q, p.s_kv, int64_t{p.d}}) h.add(x);
  h.add(static_cast<int64_t>(p.recipe->id));
  h.add(static_cast<int64_t>(p.grouping));
  h.add(int64_t{p.hadamard});
  h.add(int64_t{request.lse()});
  h.add(static_cast<int64_t>(p.k.dtype));
  h.add_bytes(&p.scale, sizeof(p.scale));
  for (const spec::SubProblem& sub : p.subs) {
    h.add(sub.q_begin);
    h.add(sub.q_len);
    for (const auto& segment : sub.segments) h.add(static_cast<int64_t>(segment.size()));
  }
  return h.value();
}

int64_t unit_count(const Request& request) {
  return checked_mul(static_cast<int64_t>(request.problem.subs.size()), request.problem.h_kv,
                     "number of heads");
}

Layout::Layout(const Request& request, int64_t first_unit, int64_t last_unit)
    : request_(request), first_unit_(first_unit) {
  const spec::Problem& p = request.problem;
  first_sub_ = first_unit < last_unit ? unit_sub(request, first_unit) : 0;
  const int64_t end_sub = first_unit < last_unit ? unit_sub(request, last_unit - 1) + 1 : 0;
  for (int64_t i = first_sub_; i < end_sub; ++i) {
    const spec::SubProblem& sub = p.subs[static_cast<size_t>(i)];
    Sub s{};
    const KeyCount& keys = request.key_counts[static_cast<size_t>(i)];
    s.n_valid = keys.valid;
    s.n_blocks = keys.blocks;
    s.rows = sub.q_len;
    s.kv = spec::kv_sizes(*p.recipe, s.n_blocks, p.d_pad);
    s.q = spec::q_sizes(*p.recipe, s.rows, p.d_pad, request.lse());
    s.kv_bytes = kv_bytes(s.kv);
    s.q_bytes = q_bytes(s.q);
    subs_.push_back(s);
  }
  const int64_t group = p.h_kv > 0 ? p.h_q / p.h_kv : 0;
  for (int64_t unit = first_unit; unit < last_unit; ++unit) {
    offsets_.push_back(bytes_);
    const Sub& s = sub_of(unit);
    bytes_ = checked_add(bytes_, s.kv_bytes, "workspace");
    bytes_ = checked_add(bytes_, checked_mul(group, s.q_bytes, "workspace"), "workspace");
  }
}

const Layout::Sub& Layout::sub_of(int64_t unit) const {
  return subs_[static_cast<size_t>(unit_sub(request_, unit) - first_sub_)];
}

int64_t Layout::unit_bytes(int64_t unit) const {
  const auto i = static_cast<size_t>(unit - first_unit_);
  return (i + 1 < offsets_.size() ? offsets_[i + 1] : bytes_) - offsets_[i];
}

spec::KvOperands Layout::kv(uint8_t* base, int64_t unit) const {
  const Sub& s = sub_of(unit);
  Carver carver(base + offsets_[static_cast<size_t>(unit - first_unit_)]);
  spec::KvOperands kv;
  kv.n_valid = s.n_valid;
  kv.n_blocks = s.n_blocks;
  kv.d_pad = request_.problem.d_pad;
  kv.order = carver.take<int32_t>(s.kv.order);
  kv.k_codes = carver.take<uint8_t>(s.kv.k_codes);
  kv.k_scale = carver.take<float>(s.kv.k_scale);
  kv.v_codes = carver.take<uint8_t>(s.kv.v_codes);
  kv.mu = carver.take<float>(s.kv.mu);
  kv.v_scale = carver.take<float>(s.kv.v_scale);
  kv.s_v = carver.take<float>(s.kv.s_v);
  kv.k_offset = carver.take<float>(s.kv.k_offset);
  kv.k_real = carver.take<float>(s.kv.k_real);
  kv.v_real = carver.take<float>(s.kv.v_real);
  kv.k_micro = carver.take<uint8_t>(s.kv.k_micro);
  kv.v_micro = carver.take<uint8_t>(s.kv.v_micro);
  kv.stats = carver.take<spec::KvOperands::Stats>(1);
  return kv;
}

spec::QOperands Layout::q(uint8_t* base, int64_t unit, int64_t q_head) const {
  const Sub& s = sub_of(unit);
  const spec::Problem& p = request_.problem;
  const int64_t index = q_head - unit_kv_head(request_, unit) * (p.h_q / p.h_kv);
  Carver carver(base + offsets_[static_cast<size_t>(unit - first_unit_)] + s.kv_bytes +
                index * s.q_bytes);
  spec::QOperands q;
  q.rows = s.rows;
  q.d_pad = p.d_pad;
  q.q_codes = carver.take<uint8_t>(s.q.q_codes);
  q.q_scale = carver.take<float>(s.q.q_scale);
  q.qk_offset = carver.take<float>(s.q.qk_offset);
  q.q_real = carver.take<float>(s.q.q_real);
  q.max_q_scale = carver.take<float>(s.q.max_q_scale);
  q.q_micro = carver.take<uint8_t>(s.q.q_micro);
  q.q_mean = carver.take<float>(s.q.q_mean);
  spec::bind_mask(p, p.subs[static_cast<size_t>(unit_sub(request_, unit))], q_head, q);
  return q;
}

int64_t workspace_bytes(const Request& request) {
  const auto header = static_cast<int64_t>(sizeof(WorkspaceHeader));
  const int64_t body =
      request.exact() ? exact_copy_bytes(request) : Layout(request, 0, unit_count(request)).bytes();
  return checked_add(header, body, "workspace");
}

void require_room(int64_t need, int64_t align, const char* advice, const void* workspace,
                  size_t bytes) {
  const char* const hint = "ask vca_attn_workspace() with the same descriptor";
  if (workspace == nullptr) {
    fail(VCA_ERR_WORKSPACE, {"workspace is NULL", "NULL", to_text(need) + " bytes or more", hint});
  }
  const auto past =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(workspace) % static_cast<uintptr_t>(align));
  if (past != 0) {
    fail(VCA_ERR_WORKSPACE,
         {"workspace is not aligned",
          "an address that leaves " + to_text(past) + " modulo " + to_text(align),
          to_text(align) + "-byte alignment", advice});
  }
  if (bytes < static_cast<size_t>(need)) {
    fail(VCA_ERR_WORKSPACE, {"workspace is too small", std::to_string(bytes) + " bytes",
                             to_text(need) + " bytes or more", hint});
  }
}

void require_room(const Request& request, const void* workspace, size_t bytes) {
  require_room(workspace_bytes(request), kWorkspaceAlign, "use aligned_alloc(64, ...)", workspace,
               bytes);
}

void require_apart_from_arrays(const Request& request, const Region& workspace,
                               int64_t state_bytes) {
  const vca_attn_desc& d = request.desc;
  const spec::Problem& p = request.problem;
  const int64_t heads = p.batches * p.h_kv, angles = p.rope.len * (p.rope.rotated / 2);
  const Region arrays[] = {
      region_of_array("kv_lens", d.kv_lens, p.batches, sizeof(int32_t)),
      region_of_array("key_mask", d.key_mask, p.batches * p.s_kv, 1),
      region_of_array("rope.cos", p.rope.cos, angles, sizeof(float)),
      region_of_array("rope.sin", p.rope.sin, angles, sizeof(float)),
      region_of_array("step", d.step, 1, sizeof(int32_t)),
      region_of_array("state", d.state, state_bytes, 1),
      region_of_array("energy_removed", d.energy_removed, heads, sizeof(float)),
      region_of_array("regrouped", d.regrouped, heads, 1),
  };
  for (const Region& array : arrays) check_disjoint(workspace, array);
}

void mark_unprepared(void* workspace) { std::memset(workspace, 0, sizeof(WorkspaceHeader)); }

void mark_prepared(const Request& request, void* workspace) {
  WorkspaceHeader header{};
  header.magic = kMagic;
  header.spec_version = spec::kSpecVersion;
  header.recipe = static_cast<int32_t>(request.problem.recipe->id);
  header.problem_hash = problem_hash(request);
  header.bytes = static_cast<uint64_t>(workspace_bytes(request));
  std::memcpy(workspace, &header, sizeof(header));
}

void require_prepared(const Request& request, const void* workspace, size_t bytes) {
  require_room(request, workspace, bytes);
  WorkspaceHeader header;
  std::memcpy(&header, workspace, sizeof(header));
  const char* const hint = "call vca_attn_prepare() with this descriptor first";
  if (header.magic != kMagic) {
    fail(VCA_ERR_WORKSPACE, {"workspace holds nothing prepared", "no header", "", hint});
  }
  if (header.spec_version != spec::kSpecVersion) {
    fail(VCA_ERR_WORKSPACE,
         {"workspace was prepared by another version of the numerics",
          to_text(int64_t{header.spec_version}), to_text(int64_t{spec::kSpecVersion}), hint});
  }
  if (header.recipe != static_cast<int32_t>(request.problem.recipe->id)) {
    fail(VCA_ERR_WORKSPACE,
         {"workspace was prepared for another recipe", to_text(int64_t{header.recipe}),
          std::string(request.problem.recipe->name), hint});
  }
  if (header.problem_hash != problem_hash(request) ||
      header.bytes != static_cast<uint64_t>(workspace_bytes(request))) {
    fail(VCA_ERR_WORKSPACE, {"workspace was prepared for another problem",
                             "other shapes, scale, grouping, segments, key counts or wish for LSE",
                             "the descriptor that vca_attn_prepare() saw", hint});
  }
}

}  // namespace vca::core
