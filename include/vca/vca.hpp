// SPDX-License-Identifier: Apache-2.0
// C++ sugar over vca.h: views, options by name, owned buffers, exceptions. Header only, C++20; it
// adds nothing to the ABI and has no opinion of its own.
//
//   std::vector<float> q, k, v, o;  // [1, 8, 4096, 128]
//   const std::array<int64_t, 4> shape{1, 8, 4096, 128};
//   vca::run(vca::view(q.data(), shape), vca::view(k.data(), shape), vca::view(v.data(), shape),
//            vca::view(o.data(), shape), {.recipe = VCA_RECIPE_VC8});
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "vca/vca.h"

namespace vca {

// What a failed call threw: the status and the library's message.
class Error : public std::runtime_error {
 public:
  Error(vca_status status, const std::string& message)
      : std::runtime_error(std::string(vca_status_str(status)) + ": " + message), status_(status) {}
  vca_status status() const noexcept { return status_; }

 private:
  vca_status status_;
};

inline void check(vca_status status) {
  if (status != VCA_OK) throw Error(status, vca_last_error());
}

// ---- views ----

enum class Layout {
  hnd,  // [B, H, S, D] in memory
  nhd,  // [B, S, H, D] in memory; shapes are given as {B, H, S, D} all the same
};

// 16-bit storage types, so that a pointer says what it points to.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

template <class T>
struct DType;
template <>
struct DType<Bf16> {
  static constexpr vca_dtype value = VCA_BF16;
};
template <>
struct DType<Fp16> {
  static constexpr vca_dtype value = VCA_FP16;
};
template <>
struct DType<float> {
  static constexpr vca_dtype value = VCA_FP32;
};

inline vca_tensor view(const void* data, vca_dtype dtype, const std::array<int64_t, 4>& shape,
                       const std::array<int64_t, 4>& stride) {
  vca_tensor t{};
  t.data = const_cast<void*>(data);  // inputs are never written
  t.dtype = dtype;
  for (size_t i = 0; i < 4; ++i) {
    t.shape[i] = shape[i];
    t.stride[i] = stride[i];
  }
  return t;
}

inline vca_tensor view(const void* data, vca_dtype dtype, const std::array<int64_t, 4>& shape,
                       Layout layout = Layout::hnd) {
  const auto [b, h, s, d] = shape;
  if (layout == Layout::hnd) return view(data, dtype, shape, {h * s * d, s * d, d, 1});
  return view(data, dtype, shape, {s * h * d, d, h * d, 1});
}

template <class T>
vca_tensor view(const T* data, const std::array<int64_t, 4>& shape, Layout layout = Layout::hnd) {
  return view(data, DType<T>::value, shape, layout);
}

// ---- options ----

// Every field of vca_attn_desc that is not a tensor, with its default; name the ones you set.
struct Options {
  vca_recipe recipe = VCA_RECIPE_AUTO;
  vca_grouping grouping = VCA_GROUPING_DEFAULT;
  std::optional<double> scale = std::nullopt;
  int hadamard = 0;  // 0 the recipe's own, 1 on, -1 off
  vca_target target = VCA_TARGET_AUTO;
  int device = VCA_DEVICE_CPU;
  bool check_finite = false;
  int num_threads = 0;
  float* lse = nullptr;                    // [B, H_q, S_q]
  std::span<const int32_t> kv_lens = {};   // [B]
  std::span<const uint8_t> key_mask = {};  // [B, S_kv]
  std::span<const vca_segment> segments = {};
  std::array<int64_t, 3> grid = {0, 0, 0};
  const vca_rope* rope = nullptr;
  const vca_policy* policy = nullptr;
  void* state = nullptr;
  const int32_t* step = nullptr;
  float* energy_removed = nullptr;  // [B, H_kv]
  uint8_t* regrouped = nullptr;     // [B, H_kv]
};

// The descriptor borrows everything it is made of.
inline vca_attn_desc describe(const vca_tensor& q, const vca_tensor& k, const vca_tensor& v,
                              const vca_tensor& o, const Options& options = {}) {
  const auto expect = [](const char* name, size_t got, int64_t want) {
    if (got == 0 || got == static_cast<size_t>(want)) return;
    throw Error(VCA_ERR_INVALID_ARGUMENT, std::string(name) + " has " + std::to_string(got) +
                                              " elements; allowed: " + std::to_string(want));
  };
  expect("kv_lens", options.kv_lens.size(), q.shape[0]);
  expect("key_mask", options.key_mask.size(), q.shape[0] * k.shape[2]);
  vca_attn_desc d = vca_attn_desc_init();
  d.q = q;
  d.k = k;
  d.v = v;
  d.o = o;
  d.recipe = options.recipe;
  d.grouping = options.grouping;
  d.has_scale = options.scale.has_value() ? 1 : 0;
  d.scale = options.scale.value_or(0.0);
  d.hadamard = options.hadamard;
  d.target = options.target;
  d.device = options.device;
  d.flags = options.check_finite ? VCA_CHECK_FINITE : 0u;
  d.num_threads = options.num_threads;
  d.lse = options.lse;
  d.kv_lens = options.kv_lens.empty() ? nullptr : options.kv_lens.data();
  d.key_mask = options.key_mask.empty() ? nullptr : options.key_mask.data();
  d.segments = options.segments.empty() ? nullptr : options.segments.data();
  d.n_segments = static_cast<int64_t>(options.segments.size());
  for (size_t i = 0; i < 3; ++i) d.grid[i] = options.grid[i];
  d.rope = options.rope;
  d.policy = options.policy;
  d.state = options.state;
  d.step = options.step;
  d.energy_removed = options.energy_removed;
  d.regrouped = options.regrouped;
  return d;
}

inline vca_rope rope(vca_rope_convention convention, const std::array<int32_t, 3>& axis_dim,
                     const std::array<int64_t, 3>& grid, double theta = 10000.0,
                     int64_t begin = 0) {
  vca_rope r{};
  r.struct_size = sizeof(r);
  r.convention = convention;
  for (size_t i = 0; i < 3; ++i) {
    r.axis_dim[i] = axis_dim[i];
    r.grid[i] = grid[i];
  }
  r.theta = theta;
  r.begin = begin;
  return r;
}

inline vca_policy policy(int32_t steps, vca_policy_after after = VCA_AFTER_REFRESH_ON_DECAY) {
  vca_policy p{};
  p.struct_size = sizeof(p);
  p.steps = steps;
  p.after = after;
  return p;
}

// ---- owned buffers ----

// Host memory for operands; grows, never shrinks.
class Workspace {
 public:
  Workspace() = default;
  explicit Workspace(const vca_attn_desc& desc) { fit(desc); }
  Workspace(Workspace&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Workspace& operator=(Workspace&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Workspace() { release(); }

  // Makes room for this problem. What was prepared before is lost when the memory has to grow.
  void fit(const vca_attn_desc& desc) {
    size_t need = 0;
    check(vca_attn_workspace(&desc, &need));
    if (need <= bytes_) return;
    release();
    data_ = ::operator new(need, kAlign);
    bytes_ = need;
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr std::align_val_t kAlign{64};
  void release() {
    if (data_ != nullptr) ::operator delete(data_, kAlign);
    data_ = nullptr;
    bytes_ = 0;
  }
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Orders kept over the denoising steps: one for each attention layer.
class GroupState {
 public:
  explicit GroupState(const vca_attn_desc& desc) {
    size_t need = 0;
    check(vca_group_state_bytes(&desc, &need));
    words_.resize((need + 7) / 8);
    check(vca_group_state_init(&desc, words_.data(), bytes(), nullptr));
  }
  void reset() { check(vca_group_state_reset(words_.data(), bytes(), nullptr)); }
  std::vector<uint8_t> save() const {
    size_t n = 0;
    check(vca_group_state_save(words_.data(), bytes(), nullptr, &n));
    std::vector<uint8_t> blob(n);
    check(vca_group_state_save(words_.data(), bytes(), blob.data(), &n));
    return blob;
  }
  void load(const vca_attn_desc& desc, std::span<const uint8_t> blob) {
    check(vca_group_state_load(&desc, words_.data(), bytes(), blob.data(), blob.size()));
  }
  void* data() { return words_.data(); }
  size_t bytes() const { return words_.size() * sizeof(uint64_t); }

 private:
  std::vector<uint64_t> words_;
};

// ---- calls ----

inline void run(const vca_attn_desc& desc) { check(vca_attn_run(&desc, nullptr, 0, nullptr)); }

inline void run(const vca_tensor& q, const vca_tensor& k, const vca_tensor& v, const vca_tensor& o,
                const Options& options = {}) {
  run(describe(q, k, v, o, options));
}

// The two halves: after prepare the memory of q, k and v may be used for other things.
inline void prepare(const vca_attn_desc& desc, Workspace& workspace) {
  workspace.fit(desc);
  check(vca_attn_prepare(&desc, workspace.data(), workspace.bytes(), nullptr));
}
inline void attend(const vca_attn_desc& desc, const Workspace& workspace) {
  check(vca_attn_attend(&desc, workspace.data(), workspace.bytes(), nullptr));
}

inline vca_attn_info query(const vca_attn_desc& desc) {
  vca_attn_info info{};
  info.struct_size = sizeof(info);
  check(vca_attn_query(&desc, &info));
  return info;
}

inline std::string explain(const vca_attn_desc& desc) {
  size_t needed = 0;
  check(vca_attn_explain(&desc, nullptr, 0, &needed));
  std::string text(needed, '\0');
  check(vca_attn_explain(&desc, text.data(), text.size(), &needed));
  text.resize(needed - 1);
  return text;
}

}  // namespace vca
