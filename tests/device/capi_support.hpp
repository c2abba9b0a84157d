// SPDX-License-Identifier: Apache-2.0
// Problems for the device test of the C ABI: one description, the same bytes on the host and on the
// device, and a descriptor for each side.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "device/memory.hpp"
#include "spec/codes.hpp"
#include "vca/vca.h"

namespace vca::tests {

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
  int32_t hadamard = 0;
  int64_t o_offset = 0;  // elements of o.data behind an aligned address
  int64_t o_gap = 16;    // elements between the rows of o, that nobody may write
  int device = 0;
  int32_t grouping = VCA_GROUPING_IDENTITY;
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << vca_recipe_str(c.recipe) << " " << c.name << " b" << c.b << " h" << c.h_q << "/"
             << c.h_kv << " s" << c.s_q << "/" << c.s_kv << " d" << c.d << " type " << c.dtype
             << " to " << c.o_dtype << " " << vca_grouping_str(c.grouping);
}

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

// A refusal whose message has every one of `words`.
inline void expect_refused(vca_status got, vca_status want, const std::vector<std::string>& words) {
  EXPECT_EQ(got, want);
  for (const std::string& word : words)
    EXPECT_NE(std::strstr(vca_last_error(), word.c_str()), nullptr)
        << vca_last_error() << "\nhas no: " << word;
}

inline int64_t element_bytes(int32_t dtype) { return dtype == VCA_FP32 ? 4 : 2; }
inline uint32_t encode(int32_t dtype, float x) {
  if (dtype == VCA_BF16) return spec::bf16_encode(x);
  if (dtype == VCA_FP16) return spec::fp16_encode(x);
  return spec::float_bits(x);
}

inline float decode(int32_t dtype, const uint8_t* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(element_bytes(dtype)));
  if (dtype == VCA_BF16) return spec::bf16_decode(static_cast<uint16_t>(bits));
  if (dtype == VCA_FP16) return spec::fp16_decode(static_cast<uint16_t>(bits));
  return spec::float_from_bits(bits);
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

  Problem(const Case& given, uint64_t seed) : c(given) {
    host = vca_attn_desc_init();
    host.recipe = c.recipe;
    host.grouping = c.grouping;
    host.hadamard = c.hadamard;
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
    host.o.stride[0] += c.o_gap * c.h_q * c.s_q;
    host.o.stride[1] += nhd ? c.o_gap : c.o_gap * c.s_q;
    host.o.stride[2] += nhd ? c.o_gap * c.h_q : c.o_gap;
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
    if (c.grouping != VCA_GROUPING_CUBES) return;
    const int64_t grid[3] = {5, (segments.empty() ? s : segments[0].len) / 25, 5};
    std::copy_n(grid, 3, host.grid);
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

  // x(b, h, s, d) in the place of q (0), k (1) or v (2), on both sides; of batches or heads that
  // share memory the first one's.
  template <class F>
  void fill(int which, F x) {
    const vca_tensor& t = which == 0 ? host.q : which == 1 ? host.k : host.v;
    const int64_t e = element_bytes(c.dtype);
    const auto distinct = [&t](int i) { return t.stride[i] == 0 ? 1 : t.shape[i]; };
    for (int64_t b = 0; b < distinct(0); ++b)
      for (int64_t h = 0; h < distinct(1); ++h)
        for (int64_t s = 0; s < t.shape[2]; ++s)
          for (int64_t d = 0; d < t.shape[3]; ++d) {
            const uint32_t bits = encode(c.dtype, x(b, h, s, d));
            const int64_t at = b * t.stride[0] + h * t.stride[1] + s * t.stride[2] + d;
            std::memcpy(static_cast<uint8_t*>(t.data) + at * e, &bits, static_cast<size_t>(e));
          }
    upload_inputs();
  }
  float input(int which, int64_t b, int64_t h, int64_t s, int64_t d) const {
    const vca_tensor& t = which == 0 ? host.q : which == 1 ? host.k : host.v;
    return value_at(t, t.data, b, h, s, d);
  }
  static float value_at(const vca_tensor& t, const void* data, int64_t b, int64_t h, int64_t s,
                        int64_t d) {
    const int64_t at = b * t.stride[0] + h * t.stride[1] + s * t.stride[2] + d;
    return decode(t.dtype, static_cast<const uint8_t*>(data) + at * element_bytes(t.dtype));
  }

  void upload_inputs() const {
    for (int i = 0; i < 3; ++i)
      if (inputs[i] != nullptr) inputs[i]->upload(storage[i].data());
    if (d_lens != nullptr) d_lens->upload(lens.data());
  }
  bool inputs_unchanged() const {
    for (int i = 0; i < 3; ++i)
      if (inputs[i] != nullptr && inputs[i]->download() != storage[i]) return false;
    return (d_mask == nullptr || d_mask->download() == mask) &&
           (d_lens == nullptr ||
            std::memcmp(d_lens->download().data(), lens.data(), lens.size() * 4) == 0);
  }
  // The buffer whose surroundings were written to; "" when none.
  std::string broken_guard() const {
    const std::pair<const DeviceBytes*, const char*> all[] = {{inputs[0].get(), "q"},
                                                              {inputs[1].get(), "k"},
                                                              {inputs[2].get(), "v"},
                                                              {d_lens.get(), "kv_lens"},
                                                              {d_mask.get(), "key_mask"},
                                                              {o.get(), "o"},
                                                              {lse.get(), "lse"},
                                                              {workspace.get(), "workspace"},
                                                              {energy.get(), "energy_removed"},
                                                              {regrouped.get(), "regrouped"}};
    for (const auto& [bytes, name] : all)
      if (bytes != nullptr && !bytes->guards_intact()) return name;
    return "";
  }

  template <class T>
  static std::unique_ptr<DeviceBytes> to_device(const std::vector<T>& from) {
    auto out = std::make_unique<DeviceBytes>(from.size() * sizeof(T));
    out->upload(from.data());
    return out;
  }

  size_t o_bytes() const {
    return static_cast<size_t>((extent_elems(host.o) + c.o_offset) * element_bytes(c.o_dtype));
  }
  size_t lse_count() const { return static_cast<size_t>(c.b * c.h_q * c.s_q); }

  void make_device() {
    device = host;
    use_device(c.device);
    device.device = c.device;
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
    o = std::make_unique<DeviceBytes>(o_bytes());
    lse = std::make_unique<DeviceBytes>(lse_count() * 4);
    device.o.data = o->data() + c.o_offset * element_bytes(c.o_dtype);
    if (c.lse) device.lse = lse->as<float>();
    if (c.energy) {
      const auto heads = static_cast<size_t>(c.b * c.h_kv);
      device.energy_removed = (energy = std::make_unique<DeviceBytes>(heads * 4))->as<float>();
      device.regrouped = (regrouped = std::make_unique<DeviceBytes>(heads))->as<uint8_t>();
      regrouped->fill(kPoison);
    }
    if (vca_attn_workspace(&device, &workspace_bytes) != VCA_OK)
      throw std::runtime_error(std::string("vca_attn_workspace: ") + vca_last_error());
    workspace = std::make_unique<DeviceBytes>(workspace_bytes);
    poison(kPoison);
  }

  void poison(int byte) const {
    o->fill(byte);
    lse->fill(byte);
    if (!leave_uninitialised()) workspace->fill(byte);
  }

  vca_status run(void* stream) const {
    return vca_attn_run(&device, workspace->data(), workspace_bytes, stream);
  }
};

}  // namespace vca::tests
