// SPDX-License-Identifier: Apache-2.0
// The arithmetic of src/spec/arith.hpp and src/spec/codes.hpp as the kernels use it: scalar where a
// value is needed once a (row, block), by vectors where it is needed for every key. Included inside
// the unit's unnamed namespace; the specification's own headers are not, because they hold inline
// library code (see kernel.hpp).
#pragma once

#include "cpu/simd.hpp"

// ---- scalar arithmetic of the specification (src/spec/arith.hpp), per row ----

inline uint32_t word(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float real(uint32_t x) { return __builtin_bit_cast(float, x); }

inline float mul_ru(float a, float b) {
  const double product = (double)a * (double)b;
  const float nearest = (float)product;
  const uint32_t up = (word(nearest) >> 31) != 0 ? word(nearest) - 1u : word(nearest) + 1u;
  return (double)nearest < product ? real(up) : nearest;
}

// x + y rounded down.
inline float sum_rd(double x, double y) {
  const double sum = x + y;
  const double y_part = sum - x;
  const double error = (x - (sum - y_part)) + (y - y_part);
  const float nearest = (float)sum;
  const bool above = (double)nearest > sum || ((double)nearest == sum && error < 0.0);
  // A sum of exactly zero keeps its sign here; it only ever is an addend.
  const uint32_t down = (word(nearest) >> 31) != 0 ? word(nearest) + 1u : word(nearest) - 1u;
  return above && sum != 0.0 ? real(down) : nearest;
}

inline float sub_rd(float a, float b) { return sum_rd((double)a, -(double)b); }
inline float fma_rd(float a, float b, float c) { return sum_rd((double)a * (double)b, (double)c); }

// RU(x + 1.5 * 2^19) - 1.5 * 2^19: spec/arith.hpp says why.
inline float ceil_sixteenth(float x) { return -sub_rd(-x, 786432.0f) - 786432.0f; }

// spec/arith.hpp says why any exponential gives the same bits.
inline float block_weight(float d) {
  if (!(d >= -1008.0f)) return 0.0f;
  return real(word((float)__builtin_exp2((double)d * 0.125)) & 0xFFFFF800u);
}

inline float pow2_code(const uint32_t* fractions, float d) {
  if (!(d >= -1008.0f)) return 0.0f;
  const uint32_t k = word(-16.0f * d + 12582912.0f) - 0x4B400000u;
  return real(fractions[k & 127u] - ((k >> 7) << 23));
}

inline float rna_tf32(float x) {
  const uint32_t rounded = (word(x) + 0x1000u) & 0xFFFFE000u;
  return (word(x) & 0x7F800000u) == 0x7F800000u ? x : real(rounded);
}

// ---- decoding ----

// E4M3 bytes to FP32. Subnormal codes go through a small-number subtraction instead of a shift into
// FP32's own subnormals, which some processors handle in microcode.
inline Vf decode_e4m3(Vi code) {
  const Vi magnitude = and_bits(code, set1_bits(0x7Fu));
  const Vf normal = from_bits(add_bits(shift_left<20>(magnitude), set1_bits(120u << 23)));
  // 2^14 + m * 2^-9 has the bits of 2^14 plus m.
  const Vf small = sub(from_bits(add_bits(magnitude, set1_bits(0x46800000u))), set1(16384.0f));
  const Vf value = select_ge(normal, set1(0x1p-6f), normal, small);
  return from_bits(or_bits(bits(value), shift_left<24>(and_bits(code, set1_bits(0x80u)))));
}

// The values of E2M1 codes, one a lane.
inline Vf decode_e2m1(Vi code) {
  const Vi magnitude = and_bits(code, set1_bits(7u));
  // From 1 up a code is the exponent and the one mantissa bit of an FP32; below it is a half.
  const Vf normal = from_bits(add_bits(shift_left<22>(magnitude), set1_bits(126u << 23)));
  const Vf whole = sub(from_bits(add_bits(magnitude, set1_bits(0x4B400000u))), set1(12582912.0f));
  const Vf value = select_ge(normal, set1(1.0f), normal, mul(whole, set1(0.5f)));
  return from_bits(or_bits(bits(value), shift_left<28>(and_bits(code, set1_bits(8u)))));
}

// Element * micro-scale of one row, both exact in FP32. Byte c holds channels c and c + dims/2
// (src/spec/fp4.hpp). step = 16: one scale for 16 channels (keys, queries); 1: one for each
// (values).
inline void decode_fp4_row(const uint8_t* codes, const uint8_t* micro, int step, int dims,
                           float* out) {
  const int half = dims / 2;
  for (int c = 0; c < half; c += kLanes) {
    const Vi both = load_u8(codes + c);
    for (int part = 0; part < 2; ++part) {
      const int channel = c + part * half;
      const Vf element =
          decode_e2m1(part == 0 ? and_bits(both, set1_bits(15u)) : shift_right<4>(both));
      const Vf scale = step == 1 ? decode_e4m3(load_u8(micro + channel))
                                 : decode_e4m3(set1_bits(micro[channel / step]));
      store(out + channel, mul(element, scale));
    }
  }
}

inline void decode_row(bool e4m3, const uint8_t* codes, int dims, float* out) {
  for (int i = 0; i < dims; i += kLanes)
    store(out + i, e4m3 ? decode_e4m3(load_u8(codes + i)) : load_i8(codes + i));
}

inline void copy_row(const float* from, int dims, float* to) {
  __builtin_memcpy(to, from, (size_t)dims * sizeof(float));
}

// ---- probabilities ----

inline Vf exp2_cpu(Vf x) {
  Vf clamped = min_or_b(x, set1(16.0f));
  clamped = max_or_b(clamped, set1(-126.0f));
  const Vf magic = set1(12582912.0f);
  const Vf shifted = add(clamped, magic);
  const Vf f = sub(clamped, sub(shifted, magic));
  Vf q = set1(0x1.5bba14p-10f);
  q = add(mul(q, f), set1(0x1.3cea88p-7f));
  q = add(mul(q, f), set1(0x1.c6b752p-5f));
  q = add(mul(q, f), set1(0x1.ebf9bcp-3f));
  q = add(mul(q, f), set1(0x1.62e42ap-1f));
  const Vf p = add(mul(q, f), set1(1.0f));
  const Vi scaled =
      add_bits(bits(p), shift_left<23>(add_bits(bits(shifted), set1_bits(0u - 0x4B400000u))));
  return select_ge(x, set1(-126.0f), from_bits(scaled), set1(0.0f));
}

// Nearest integer of x clamped to 0 .. 255 (0 for NaN), as FP32.
inline Vf round_u8(Vf x) {
  const Vf magic = set1(12582912.0f);
  return sub(add(min_or_b(max_or_b(x, set1(0.0f)), set1(255.0f)), magic), magic);
}

// The value of E4M3 code F2IP(x).
inline Vf expcast_value(Vf x) {
  const Vf code = round_u8(x);
  const Vi index = add_bits(bits(add(code, set1(12582912.0f))), set1_bits(0u - 0x4B400000u));
  const Vf normal = from_bits(add_bits(shift_left<20>(index), set1_bits(120u << 23)));
  return select_ge(code, set1(8.0f), normal, mul(code, set1(0x1p-9f)));
}

// decode(e4m3_encode(e)) for e >= 0.
inline Vf round_e4m3(Vf e) {
  const Vi odd = and_bits(shift_right<20>(bits(e)), set1_bits(1u));
  const Vi rounded =
      and_bits(add_bits(add_bits(bits(e), set1_bits(0x7FFFFu)), odd), set1_bits(0xFFF00000u));
  const Vf small = sub(add(e, set1(16384.0f)), set1(16384.0f));
  const Vf value = select_ge(e, set1(0x1p-6f), from_bits(rounded), small);
  return select_ge(e, set1(448.0f), set1(448.0f), value);
}

// decode(e2m1_encode(e)) for e >= 0: steps of 0.5 below 2, of 1 below 4, of 2 above.
inline Vf round_e2m1(Vf e) {
  const Vf half = set1(12582912.0f * 0.5f), one = set1(12582912.0f), two = set1(12582912.0f * 2.0f);
  const Vf x = min_or_b(e, set1(6.0f));
  const Vf fine = sub(add(x, half), half), middle = sub(add(x, one), one);
  const Vf coarse = sub(add(x, two), two);
  return select_ge(x, set1(4.0f), coarse, select_ge(x, set1(2.0f), middle, fine));
}
