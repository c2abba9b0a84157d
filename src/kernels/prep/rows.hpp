// SPDX-License-Identifier: Apache-2.0
// A row of q, k or v in registers. A thread holds eight consecutive channels, an octet; kDPad / 8
// neighbouring lanes hold a row, so a warp loads whole rows and stores whole rows of codes.
#pragma once

#include "kernels/prep/tensor.hpp"
#include "spec/tiles.hpp"

namespace vca::kernels::prep {

// How a kernel reads a tensor. The first three: 16-byte pieces, RoPE in registers (rope.hpp).
// `any`: element by element with the type as a run-time value, RoPE while reading; for rows that do
// not start at multiples of 16 bytes, and for RoPE whose pairs do not fit octets.
enum class Source : int32_t { bf16 = 0, fp16 = 1, fp32 = 2, any = 3 };
static_assert(static_cast<int>(Source::fp32) == static_cast<int>(spec::DType::fp32));

// Eight channels as they stand in the tensor; FP32 for `any`.
template <Source kSource>
struct Octet {
  static constexpr bool kWide = kSource == Source::fp32 || kSource == Source::any;
  static constexpr int kWords = kWide ? 8 : 4;
  uint32_t word[kWords];
};

// Channels 2i and 2i + 1.
template <Source kSource>
VCA_DEVICE void decode_pair(const Octet<kSource>& raw, int i, float (&x)[2]) {
  if constexpr (Octet<kSource>::kWide) {
    x[0] = ptx::bits_float(raw.word[2 * i]);
    x[1] = ptx::bits_float(raw.word[2 * i + 1]);
  } else if constexpr (kSource == Source::bf16) {
    x[0] = ptx::bits_float(raw.word[i] << 16);
    x[1] = ptx::bits_float(raw.word[i] & 0xFFFF0000u);
  } else {
    x[0] = ptx::cvt_f32_f16(raw.word[i] & 0xFFFFu);
    x[1] = ptx::cvt_f32_f16(raw.word[i] >> 16);
  }
}
template <Source kSource>
VCA_DEVICE void decode(const Octet<kSource>& raw, float (&x)[8]) {
  VCA_UNROLL
  for (int i = 0; i < 4; ++i) {
    float pair[2];
    decode_pair(raw, i, pair);
    x[2 * i] = pair[0];
    x[2 * i + 1] = pair[1];
  }
}

// All eight channels -0: adding it changes no sum, not even a sum of -0.
template <Source kSource>
VCA_DEVICE Octet<kSource> negative_zeros() {
  Octet<kSource> out;
  VCA_UNROLL
  for (int i = 0; i < Octet<kSource>::kWords; ++i)
    out.word[i] = Octet<kSource>::kWide ? 0x80000000u : 0x80008000u;
  return out;
}

// Reads channels [channel, channel + 8) of the rows of one head; zeros from head_dim on: such lanes
// read the same zeros for every token, so that a load needs no condition.
template <Source kSource>
class RowReader {
 public:
  VCA_DEVICE RowReader(const Params& p, const Tensor& t, int64_t batch, int64_t head, int channel) {
    constexpr int kElement = kSource == Source::fp32 ? 4 : 2;
    const int64_t at = row_offset(t, batch, head, 0) + channel;
    const bool real = channel < p.d;
    base_ = real ? static_cast<const uint8_t*>(t.data) + at * kElement : p.zeros;
    pitch_ = real ? t.row_bytes : 0;
  }
  VCA_DEVICE Octet<kSource> load(int32_t token) const {
    Octet<kSource> out;
    const uint8_t* from = base_ + uint64_t{static_cast<uint32_t>(token)} * pitch_;
    VCA_UNROLL
    for (int i = 0; i < Octet<kSource>::kWords / 4; ++i) {
      const ptx::Words4 x = ptx::ld_global_nc_stream_v4(from + 16 * i);
      VCA_UNROLL
      for (int j = 0; j < 4; ++j) out.word[4 * i + j] = x.word[j];
    }
    return out;
  }

 private:
  const uint8_t* base_;
  uint32_t pitch_;
};

template <>
class RowReader<Source::any> {
 public:
  VCA_DEVICE RowReader(const Params& p, const Tensor& t, int64_t batch, int64_t head, int channel)
      : p_(p), t_(t), head_(row_offset(t, batch, head, 0)), channel_(channel) {}
  VCA_DEVICE Octet<Source::any> load(int32_t token) const {
    Octet<Source::any> out = {};
    const bool turns = &t_ != &p_.v;
    VCA_NO_UNROLL
    for (int i = 0; i < 8; ++i) {  // a shift register: no array with a run-time index
      const int64_t row = head_ + token * t_.stride_s;
      const float x = turns ? load_rotated(p_, t_, row, token, channel_ + i)
                            : load_plain(p_, t_, row, channel_ + i);
      VCA_UNROLL
      for (int j = 0; j < 7; ++j) out.word[j] = out.word[j + 1];
      out.word[7] = ptx::float_bits(x);
    }
    return out;
  }

 private:
  const Params& p_;
  const Tensor& t_;
  int64_t head_;
  int channel_;
};

// Lanes of a warp: kLanes for a row, so kRowsAtOnce rows side by side. A CTA goes through the 128
// rows of a tile in kSteps; fewer steps take more threads, each with fewer registers.
template <int kDPad, int kStepsOfTile = 8>
struct RowLanes {
  static constexpr int kLanes = kDPad / 8;
  static constexpr int kRowsAtOnce = 32 / kLanes;  // of a warp
  static constexpr int kSteps = kStepsOfTile;
  static constexpr int kThreads = kRows / kSteps * kLanes;
  static constexpr int kWarps = kThreads / 32;
};

// Maximum of non-negative values over kLanes neighbouring lanes. Their bits are ordered as they
// are.
template <int kLanes>
VCA_DEVICE float lanes_max(float x) {
  if constexpr (kLanes == 32) {
    return ptx::bits_float(ptx::redux_sync_max(ptx::float_bits(x)));
  } else {
    VCA_UNROLL
    for (uint32_t m = 1; m < kLanes; m *= 2) x = ptx::max_f32(x, ptx::shfl_sync_bfly(x, m));
    return x;
  }
}
// B1's tree over kLanes neighbouring lanes.
template <int kLanes>
VCA_DEVICE float lanes_sum(float x) {
  VCA_UNROLL
  for (uint32_t m = 1; m < kLanes; m *= 2) x = add(x, ptx::shfl_sync_bfly(x, m));
  return x;
}
VCA_DEVICE float sum8(const float (&x)[8]) {
  return add(add(add(x[0], x[1]), add(x[2], x[3])), add(add(x[4], x[5]), add(x[6], x[7])));
}
// x[index] without an array that a run-time index would send to memory.
VCA_DEVICE float pick(const float (&x)[2], uint32_t index) { return index == 0 ? x[0] : x[1]; }
VCA_DEVICE float pick(const float (&x)[4], uint32_t index) {
  const float low = (index & 1) != 0 ? x[1] : x[0], high = (index & 1) != 0 ? x[3] : x[2];
  return (index & 2) != 0 ? high : low;
}
VCA_DEVICE float max_abs8(const float (&x)[8]) {
  float m = 0.0f;
  VCA_UNROLL
  for (int i = 0; i < 8; ++i) m = ptx::max_f32(m, ptx::abs_f32(x[i]));
  return m;
}

// Butterflies from stride 1 up: three stages in the thread, the others between lanes.
template <int kDPad>
VCA_DEVICE void hadamard(float (&x)[8], uint32_t lane) {
  VCA_UNROLL
  for (int stride = 1; stride < 8; stride *= 2) {
    VCA_UNROLL
    for (int i = 0; i < 8; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = add(a, b);
      x[i + stride] = sub(a, b);
    }
  }
  VCA_UNROLL
  for (uint32_t m = 1; m < RowLanes<kDPad>::kLanes; m *= 2) {
    // The upper lane subtracts: times -1 or 1 is exact, so an FMA rounds as that addition does.
    const float sign = (lane & m) != 0 ? -1.0f : 1.0f;
    VCA_UNROLL
    for (int i = 0; i < 8; ++i) x[i] = fma(x[i], sign, ptx::shfl_sync_bfly(x[i], m));
  }
}

// Score codes of eight channels, to a tile of rows of kDPad bytes. With factor = RN(127/amax) and
// |x| <= amax, |x * factor| <= 127 (1 + 2^-24)^2 < 127.5: the INT8 conversion cannot reach -128.
template <int kDPad>
VCA_DEVICE void store_codes(const Params& p, uint8_t* tile, int row, int channel,
                            const float (&x)[8], float factor) {
  uint32_t word[2];
  VCA_UNROLL
  for (int w = 0; w < 2; ++w) {
    float y[4];
    VCA_UNROLL
    for (int i = 0; i < 4; ++i) y[i] = mul(x[4 * w + i], factor);
    word[w] = p.e4m3_head ? ptx::cvt_rn_satfinite_e4m3x4_f32(y[0], y[1], y[2], y[3])
                          : ptx::cvt_pack_sat_s8x4_f32(y[0], y[1], y[2], y[3]);
  }
  ptx::st_global_v2(tile + spec::t128_offset(row, channel, kDPad), word[0], word[1]);
}

// Maximum over the CTA; uses kWarps floats at the start of shared memory.
template <class Lanes>
VCA_DEVICE float cta_max(float x) {
  const ptx::SmemAddr shared = ptx::dynamic_smem();
  const uint32_t thread = ptx::thread_index();
  x = lanes_max<32>(x);
  if (thread % 32 == 0) ptx::st_shared_f32(shared + thread / 32 * 4, x);
  ptx::bar_sync(0, Lanes::kThreads);
  VCA_UNROLL
  for (uint32_t w = 0; w < Lanes::kWarps; ++w)
    x = ptx::max_f32(x, ptx::ld_shared_f32(shared + w * 4));
  return x;
}

// B1's tree over the 16 slots of a block, eight channels a thread; store(channel, sum) by the first
// kDPad threads. Uses kWarps * kDPad floats at the start of shared memory.
template <int kDPad, class Store>
VCA_DEVICE void sum_over_slots(float (&sum)[8], int channel, const Store& store) {
  using Lanes = RowLanes<kDPad>;
  const uint32_t thread = ptx::thread_index();
  const ptx::SmemAddr shared = ptx::dynamic_smem();
  VCA_UNROLL
  for (uint32_t m = Lanes::kLanes; m < 32; m *= 2) {
    VCA_UNROLL
    for (int i = 0; i < 8; ++i) sum[i] = add(sum[i], ptx::shfl_sync_bfly(sum[i], m));
  }
  if (thread % 32 < Lanes::kLanes) {
    VCA_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      ptx::Words4 x;
      VCA_UNROLL
      for (int j = 0; j < 4; ++j) x.word[j] = ptx::float_bits(sum[4 * i + j]);
      const uint32_t at = thread / 32 * kDPad + static_cast<uint32_t>(channel) + 4 * i;
      ptx::st_shared_v4(shared + at * 4, x);
    }
  }
  ptx::bar_sync(0, Lanes::kThreads);
  if (thread >= kDPad) return;
  float of_warp[Lanes::kWarps];
  VCA_UNROLL
  for (uint32_t w = 0; w < Lanes::kWarps; ++w)
    of_warp[w] = ptx::ld_shared_f32(shared + (w * kDPad + thread) * 4);
  VCA_UNROLL
  for (int width = 1; width < Lanes::kWarps; width *= 2) {
    VCA_UNROLL
    for (int w = 0; w < Lanes::kWarps; w += 2 * width)
      of_warp[w] = add(of_warp[w], of_warp[w + width]);
  }
  store(thread, of_warp[0]);
}

VCA_DEVICE void load8(const float* from, float (&to)[8]) {  // 16-byte aligned
  VCA_UNROLL
  for (int i = 0; i < 2; ++i) {
    const ptx::Words4 x = ptx::ld_global_nc_v4(from + 4 * i);
    VCA_UNROLL
    for (int j = 0; j < 4; ++j) to[4 * i + j] = ptx::bits_float(x.word[j]);
  }
}

}  // namespace vca::kernels::prep
