// SPDX-License-Identifier: Apache-2.0
// Problems for the device test of the C ABI: one description, the same bytes on the host and on the
// device, and a descriptor for each side.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "spec/codes.hpp"
#include "vca/vca.h"

namespace vca::tests {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("CUDA: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t n) : size_(n) {
    check(cudaMalloc(&data_, std::max<size_t>(n, 1)), "cudaMalloc");
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void fill(int byte) const { check(cudaMemset(data_, byte, size_), "cudaMemset"); }
  void upload(const void* from) const {
    if (size_ != 0) check(cudaMemcpy(data_, from, size_, cudaMemcpyHostToDevice), "copy in");
  }
  std::vector<uint8_t> download() const {
    std::vector<uint8_t> out(size_);
    if (size_ != 0) check(cudaMemcpy(out.data(), data_, size_, cudaMemcpyDeviceToHost), "copy out");
    return out;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

// A NaN in every output type, which finite inputs never give: what nobody wrote shows.
inline constexpr uint8_t kPoison = 0xFF;

enum class Memory { hnd, nhd, fused_qkv, shared_batches, shared_heads };
enum class Split { one, text_and_padding, sequences };
enum class RopeKind { none, grid, tables };

struct Case {
  const char* name;
  int32_t recipe = VCA_RECIPE_VC8;
  int32_t dtype = VCA_BF16;
  int32_t o_dtype = VCA_BF16;
  int64_t b = 1, h_q = 1, h_kv = 1, s_q = 128, s_kv = 128;
  int d = 128;
  Memory memory = Memory::hnd;
  Split split = Split::one;
  RopeKind rope = RopeKind::none;
  bool lens = false, mask = false, lse = true, energy = false;
  double scale = 1e9;  // 1e9: the default
};

// Counter-based: the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // Near enough to normal: twelve uniforms.
  float normal() {
    int64_t sum = 0;
    for (int i = 0; i < 3; ++i) {
      const uint64_t bits = next();
      for (int j = 0; j < 4; ++j) sum += static_cast<int64_t>(bits >> (16 * j) & 0xFFFF);
    }
    return static_cast<float>(sum - 6 * 65535) / 65535.0f;
  }

 private:
  uint64_t state_;
};

inline int64_t element_bytes(int32_t dtype) { return dtype == VCA_FP32 ? 4 : 2; }
inline uint32_t encode(int32_t dtype, float x) {
  if (dtype == VCA_BF16) return spec::bf16_encode(x);
  if (dtype == VCA_FP16) return spec::fp16_encode(x);
  return spec::float_bits(x);
}

inline vca_tensor tensor(int32_t dtype, int64_t b, int64_t h, int64_t s, int64_t d, bool nhd) {
  vca_tensor t{};
  t.dtype = dtype;
  const int64_t shape[4] = {b, h, s, d};
  const int64_t hnd_stride[4] = {h * s * d, s * d, d, 1}, nhd_stride[4] = {s * h * d, d, h * d, 1};
  std::copy_n(shape, 4, t.shape);
  std::copy_n(nhd ? nhd_stride : hnd_stride, 4, t.stride);
  return t;
}

// Everything a call reads, on both sides; o, lse and the workspace on the device.
struct Problem {
  Case c;
  std::vector<uint8_t> storage[3];  // q, k, v; all in the first one when fused
  std::vector<int32_t> lens;
  std::vector<uint8_t> mask;
  std::vector<float> cos, sin;
  std::vector<vca_segment> segments;
  vca_rope host_rope{}, device_rope{};
  std::unique_ptr<DeviceBytes> inputs[3], d_lens, d_mask, d_cos, d_sin, o, lse, energy, regrouped;
  std::unique_ptr<DeviceBytes> workspace;
  vca_attn_desc host{}, device{};
  size_t workspace_bytes = 0;
  static constexpr size_t kGuard = 4096;  // bytes behind outputs and workspace

  Problem(const Case& given, uint64_t seed) : c(given) {
    host = vca_attn_desc_init();
    host.recipe = c.recipe;
    host.grouping = VCA_GROUPING_IDENTITY;
    if (c.scale != 1e9) {
      host.has_scale = 1;
      host.scale = c.scale;
    }
    make_views();
    make_masks(seed);
    make_rope();
    make_inputs(seed);
    make_device();
  }

  void make_views() {
    const bool fused = c.memory == Memory::fused_qkv;
    const bool nhd = fused || c.memory == Memory::nhd;
    host.q = tensor(c.dtype, c.b, c.h_q, c.s_q, c.d, nhd);
    host.k = tensor(c.dtype, c.b, c.h_kv, c.s_kv, c.d, nhd);
    host.v = host.k;
    host.o = tensor(c.o_dtype, c.b, c.h_q, c.s_q, c.d, nhd);
    // Rows of o with a gap behind each that nobody may write.
    host.o.stride[0] += 16 * c.h_q * c.s_q;
    host.o.stride[1] += nhd ? 16 : 16 * c.s_q;
    host.o.stride[2] += nhd ? 16 * c.h_q : 16;
    for (vca_tensor* t : {&host.q, &host.k, &host.v}) {
      if (fused) {
        t->stride[2] = (c.h_q + 2 * c.h_kv) * c.d;
        t->stride[0] = c.s_q * t->stride[2];
      }
      if (c.memory == Memory::shared_batches) t->stride[0] = 0;
      if (c.memory == Memory::shared_heads) t->stride[1] = 0;
    }
  }

  void make_masks(uint64_t seed) {
    Random rng(seed + 77);
    if (c.lens) {
      for (int64_t b = 0; b < c.b; ++b)
        lens.push_back(b == 1 ? 0 : static_cast<int32_t>(rng.next() % uint64_t(c.s_kv + 1)));
      lens[0] = static_cast<int32_t>(c.s_kv);
      host.kv_lens = lens.data();
    }
    if (c.mask) {
      for (int64_t i = 0; i < c.b * c.s_kv; ++i) mask.push_back(rng.next() % 3 != 0);
      host.key_mask = mask.data();
    }
    const int64_t s = c.s_kv;
    if (c.split == Split::text_and_padding)
      segments = {{0, s / 2, VCA_SEGMENT_VIDEO, 0},
                  {s / 2, s / 8, VCA_SEGMENT_PADDING, 0},
                  {s / 2 + s / 8, s - s / 2 - s / 8, VCA_SEGMENT_TEXT, 0}};
    if (c.split == Split::sequences)
      segments = {{0, s / 3, VCA_SEGMENT_SEQUENCE, 0},
                  {s / 3, 7, VCA_SEGMENT_PADDING, 0},
                  {s / 3 + 7, 1, VCA_SEGMENT_SEQUENCE, 0},
                  {s / 3 + 8, s - s / 3 - 8, VCA_SEGMENT_SEQUENCE, 0}};
    host.segments = segments.empty() ? nullptr : segments.data();
    host.n_segments = static_cast<int64_t>(segments.size());
  }

  void make_rope() {
    if (c.rope == RopeKind::none) return;
    host_rope.struct_size = sizeof(host_rope);
    host_rope.convention = c.rope == RopeKind::grid ? VCA_ROPE_INTERLEAVED : VCA_ROPE_HALF;
    const int32_t third = c.d / 6 * 2;
    for (int i = 0; i < 3; ++i) host_rope.axis_dim[i] = third;
    host_rope.theta = 10000.0;
    host_rope.begin = 1;
    const int64_t grid[3] = {2, 3, (c.s_kv - 1) / 6};
    std::copy_n(grid, 3, host_rope.grid);
    if (c.rope == RopeKind::tables) {
      for (int64_t i = 0; i < c.s_kv * third * 3 / 2; ++i) {
        const double angle = 0.001 * static_cast<double>(i % 6151);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
      host_rope.cos = cos.data();
      host_rope.sin = sin.data();
    }
    host.rope = &host_rope;
  }

  static int64_t extent_elems(const vca_tensor& t) {
    int64_t last = 1;
    for (int i = 0; i < 4; ++i) {
      if (t.shape[i] == 0) return 0;
      last += (t.shape[i] - 1) * t.stride[i];
    }
    return last;
  }

  // New numbers in the same places.
  void make_inputs(uint64_t seed) {
    const bool fused = c.memory == Memory::fused_qkv;
    vca_tensor* const views[3] = {&host.q, &host.k, &host.v};
    const auto e = static_cast<size_t>(element_bytes(c.dtype));
    Random rng(seed);
    for (int i = 0; i < 3; ++i) {
      if (fused && i > 0) break;
      const int64_t elems = fused ? c.b * host.q.stride[0] : extent_elems(*views[i]);
      storage[i].resize(static_cast<size_t>(elems) * e);
      const float magnitude = i == 2 ? 1.0f : 1.4f, offset = i == 0 ? 0.0f : 0.4f;
      for (size_t n = 0; n < static_cast<size_t>(elems); ++n) {
        const uint32_t bits = encode(c.dtype, rng.normal() * magnitude + offset);
        std::memcpy(storage[i].data() + n * e, &bits, e);
      }
    }
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t head0 = i == 0 ? 0 : c.h_q + (i - 1) * c.h_kv;
      views[i]->data =
          fused ? storage[0].data() + static_cast<size_t>(head0 * c.d) * e : storage[i].data();
    }
  }

  void upload_inputs() const {
    for (int i = 0; i < 3; ++i)
      if (inputs[i] != nullptr) inputs[i]->upload(storage[i].data());
    if (d_lens != nullptr) d_lens->upload(lens.data());
  }
  bool inputs_unchanged() const {
    for (int i = 0; i < 3; ++i)
      if (inputs[i] != nullptr && inputs[i]->download() != storage[i]) return false;
    return true;
  }

  template <class T>
  static std::unique_ptr<DeviceBytes> to_device(const std::vector<T>& from) {
    auto out = std::make_unique<DeviceBytes>(from.size() * sizeof(T));
    out->upload(from.data());
    return out;
  }

  size_t o_bytes() const {
    return static_cast<size_t>(extent_elems(host.o) * element_bytes(c.o_dtype));
  }
  size_t lse_count() const { return static_cast<size_t>(c.b * c.h_q * c.s_q); }

  void make_device() {
    device = host;
    device.device = 0;
    vca_tensor* const views[3] = {&device.q, &device.k, &device.v};
    for (int i = 0; i < 3; ++i) {
      const int from = c.memory == Memory::fused_qkv ? 0 : i;
      if (from == i) inputs[i] = std::make_unique<DeviceBytes>(storage[i].size());
      const auto at = static_cast<const uint8_t*>(views[i]->data) - storage[from].data();
      views[i]->data = inputs[from]->data() + at;
    }
    if (c.lens) device.kv_lens = (d_lens = to_device(lens))->as<int32_t>();
    if (c.mask) device.key_mask = (d_mask = to_device(mask))->as<uint8_t>();
    upload_inputs();
    device_rope = host_rope;
    if (c.rope == RopeKind::tables) {
      device_rope.cos = (d_cos = to_device(cos))->as<float>();
      device_rope.sin = (d_sin = to_device(sin))->as<float>();
    }
    if (c.rope != RopeKind::none) device.rope = &device_rope;
    o = std::make_unique<DeviceBytes>(o_bytes() + kGuard);
    lse = std::make_unique<DeviceBytes>(lse_count() * 4 + kGuard);
    device.o.data = o->data();
    if (c.lse) device.lse = lse->as<float>();
    if (c.energy) {
      const auto heads = static_cast<size_t>(c.b * c.h_kv);
      device.energy_removed = (energy = std::make_unique<DeviceBytes>(heads * 4))->as<float>();
      device.regrouped = (regrouped = std::make_unique<DeviceBytes>(heads))->as<uint8_t>();
      regrouped->fill(kPoison);
    }
    if (vca_attn_workspace(&device, &workspace_bytes) != VCA_OK) {
      std::printf("%s: vca_attn_workspace: %s\n", c.name, vca_last_error());
      std::exit(1);
    }
    workspace = std::make_unique<DeviceBytes>(workspace_bytes + kGuard);
    poison(kPoison);
  }

  void poison(int byte) const {
    o->fill(byte);
    lse->fill(byte);
    workspace->fill(byte);
  }

  vca_status run(void* stream) const {
    return vca_attn_run(&device, workspace->data(), workspace_bytes, stream);
  }
};

}  // namespace vca::tests
