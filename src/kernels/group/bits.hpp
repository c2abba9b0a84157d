// SPDX-License-Identifier: Apache-2.0
// Small tools of the grouping kernels: shared memory, 16-byte words, rows of INT8 in shared memory.
#pragma once

#include <bit>

#include "kernels/group/params.hpp"
#include "ptx/ptx.hpp"

#if defined(__CUDACC__)
#define VCA_UNROLL_1 _Pragma("unroll 1")
#define VCA_UNROLL_4 _Pragma("unroll 4")
#define VCA_UNROLL_8 _Pragma("unroll 8")
#else
#define VCA_UNROLL_1
#define VCA_UNROLL_4
#define VCA_UNROLL_8
#endif

namespace vca::kernels::group {

using ptx::Word4;

// When a kernel begins: after all those before it, which is what a kernel without this does; the
// same, and the next one may begin beside it; beside the last one, which is of the kind before.
enum class Overlap { none, next, last };

template <class T>
VCA_DEVICE T* shared_at(int64_t bytes) {
  return reinterpret_cast<T*>(ptx::dynamic_smem_pointer() + bytes);
}
VCA_DEVICE uint32_t word_of(const Word4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}
VCA_DEVICE Word4 load_word4(const void* at) { return *static_cast<const Word4*>(at); }
VCA_DEVICE void store_word4(void* at, const Word4& x) { *static_cast<Word4*>(at) = x; }

// Rows of kD bytes in shared memory. For 128 bytes, 16-byte chunk c of row r lies at c xor
// 4 (r mod 2): the fragment loads of two neighbouring rows, 64 bytes each, then fall into different
// halves of the banks.
template <int kD>
VCA_DEVICE int chunk_offset(int row, int chunk) {
  return row * kD + (kD == 128 ? chunk ^ ((row & 1) << 2) : chunk) * 16;
}

// A lane's share of a row for mma: chunks t and t + 4 (head_dim 128) or chunk t. Both operands use
// the same one, so which channel an MMA calls k does not matter.
template <int kD>
struct RowShare {
  static constexpr int kChunks = kD / 64;
  static constexpr int kSteps = kD / 32;
  Word4 chunk[kChunks];
  VCA_DEVICE uint32_t low(int step) const {
    return step % 2 == 0 ? chunk[step / 2].x : chunk[step / 2].z;
  }
  VCA_DEVICE uint32_t high(int step) const {
    return step % 2 == 0 ? chunk[step / 2].y : chunk[step / 2].w;
  }
};
template <int kD>
VCA_DEVICE RowShare<kD> share_from_global(const int8_t* row, int t) {
  RowShare<kD> out;
  VCA_UNROLL
  for (int c = 0; c < RowShare<kD>::kChunks; ++c) out.chunk[c] = load_word4(row + (t + 4 * c) * 16);
  return out;
}
template <int kD>
VCA_DEVICE RowShare<kD> share_from_shared(const unsigned char* rows, int row, int t) {
  RowShare<kD> out;
  VCA_UNROLL
  for (int c = 0; c < RowShare<kD>::kChunks; ++c)
    out.chunk[c] = load_word4(rows + chunk_offset<kD>(row, t + 4 * c));
  return out;
}
template <int kD>
VCA_DEVICE RowShare<kD> empty_share() {
  RowShare<kD> out;
  VCA_UNROLL
  for (int c = 0; c < RowShare<kD>::kChunks; ++c) out.chunk[c] = {0, 0, 0, 0};
  return out;
}

// acc += rows a (g) and b (g + 8) times column c.
template <int kD>
VCA_DEVICE void multiply(int32_t (&acc)[4], const RowShare<kD>& a, const RowShare<kD>& b,
                         const RowShare<kD>& c) {
  VCA_UNROLL
  for (int j = 0; j < RowShare<kD>::kSteps; ++j)
    ptx::mma_m16n8k32_s32_s8_s8(acc, a.low(j), b.low(j), a.high(j), b.high(j), c.low(j), c.high(j));
}

template <int kD>
VCA_DEVICE int32_t norm_of_share(const RowShare<kD>& a) {
  int32_t sum = 0;
  VCA_UNROLL
  for (int c = 0; c < RowShare<kD>::kChunks; ++c) {
    sum = ptx::dp4a(a.chunk[c].x, a.chunk[c].x, sum);
    sum = ptx::dp4a(a.chunk[c].y, a.chunk[c].y, sum);
    sum = ptx::dp4a(a.chunk[c].z, a.chunk[c].z, sum);
    sum = ptx::dp4a(a.chunk[c].w, a.chunk[c].w, sum);
  }
  return sum;
}
template <int kD>
VCA_DEVICE int32_t norm_of_row(const unsigned char* rows, int row) {
  int32_t sum = 0;
  for (int c = 0; c < kD / 16; ++c) {
    const Word4 w = load_word4(rows + chunk_offset<kD>(row, c));
    sum = ptx::dp4a(w.x, w.x, sum);
    sum = ptx::dp4a(w.y, w.y, sum);
    sum = ptx::dp4a(w.z, w.z, sum);
    sum = ptx::dp4a(w.w, w.w, sum);
  }
  return sum;
}

// round(num / den), halves up, den > 0: spec::grouping::round_div. `num` is a sum of `den` INT8
// tokens: with fewer than 2^22 of them, 32 bits hold twice of it.
VCA_DEVICE int32_t round_div(int32_t num, int32_t den) {
  if (den < 1 << 22) {
    const int32_t twice = 2 * num + den, whole = 2 * den;
    const int32_t q = twice / whole;
    return q * whole > twice ? q - 1 : q;
  }
  const int64_t twice = 2 * int64_t{num} + den, whole = 2 * int64_t{den};
  const int64_t q = twice / whole;
  return static_cast<int32_t>(q * whole > twice ? q - 1 : q);
}

VCA_DEVICE int thread() { return static_cast<int>(ptx::thread_index()); }
VCA_DEVICE int lane() { return static_cast<int>(ptx::thread_index() % 32); }
VCA_DEVICE int warp() { return static_cast<int>(ptx::thread_index() / 32); }
// Inclusive prefix sum over the lanes of a warp.
VCA_DEVICE int32_t sum_up_to_lane(int32_t x) {
  for (uint32_t distance = 1; distance < 32; distance *= 2) {
    const auto below = static_cast<int32_t>(ptx::shfl_sync_idx(
        static_cast<uint32_t>(x), (static_cast<uint32_t>(lane()) - distance) & 31u));
    if (static_cast<uint32_t>(lane()) >= distance) x += below;
  }
  return x;
}

VCA_DEVICE int32_t min3(int32_t a, int32_t b, int32_t c) {
#if defined(__CUDACC__)
  return __vimin3_s32(a, b, c);
#else
  const int32_t low = b < c ? b : c;
  return a < low ? a : low;
#endif
}

#if defined(__CUDACC__)
VCA_DEVICE double add_f64(double a, double b) { return __dadd_rn(a, b); }
VCA_DEVICE double mul_f64(double a, double b) { return __dmul_rn(a, b); }
#else
VCA_DEVICE double add_f64(double a, double b) { return a + b; }
VCA_DEVICE double mul_f64(double a, double b) { return a * b; }
#endif
VCA_DEVICE double divide(double a, double b) {
#if defined(__CUDACC__)
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}

VCA_DEVICE int32_t popcount(uint32_t x) {
#if defined(__CUDACC__)
  return __popc(x);
#else
  return std::popcount(x);
#endif
}

// All threads of the CTA, which may have gone different ways before it.
VCA_DEVICE void sync_threads(int threads) { ptx::cta_sync(static_cast<uint32_t>(threads)); }

// Sums over a warp.
VCA_DEVICE int64_t warp_sum(int64_t x) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    const auto low = ptx::shfl_sync_bfly(static_cast<int32_t>(x), mask);
    const auto high = ptx::shfl_sync_bfly(static_cast<int32_t>(x >> 32), mask);
    x += static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 |
                              static_cast<uint32_t>(low));
  }
  return x;
}

}  // namespace vca::kernels::group
