// SPDX-License-Identifier: Apache-2.0
// The few vector operations that the kernels need, for AVX-512, AVX2 + FMA, SSE2 and plain C. A
// lane is a query row, so nothing here moves data across lanes and every width gives the same bits.
//
// Included by the units only, inside their own unnamed namespace; intrinsics and C headers must be
// included before.
#pragma once

#if defined(__AVX512F__)

using Vf = __m512;
using Vi = __m512i;
constexpr int kLanes = 16;
constexpr bool kFastFma = true;

static inline Vf load(const float* p) { return _mm512_load_ps(p); }
static inline void store(float* p, Vf x) { _mm512_store_ps(p, x); }
static inline Vf set1(float x) { return _mm512_set1_ps(x); }
static inline Vf add(Vf a, Vf b) { return _mm512_add_ps(a, b); }
static inline Vf sub(Vf a, Vf b) { return _mm512_sub_ps(a, b); }
static inline Vf mul(Vf a, Vf b) { return _mm512_mul_ps(a, b); }
static inline Vf div(Vf a, Vf b) { return _mm512_div_ps(a, b); }
static inline Vf fma_rn(Vf a, Vf b, Vf c) { return _mm512_fmadd_ps(a, b, c); }
// b where the comparison meets a NaN in a, as the SSE instruction.
static inline Vf max_or_b(Vf a, Vf b) { return _mm512_max_ps(a, b); }
static inline Vf min_or_b(Vf a, Vf b) { return _mm512_min_ps(a, b); }
static inline Vf select_ge(Vf x, Vf y, Vf yes, Vf no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_GE_OQ), no, yes);
}
static inline Vi bits(Vf x) { return _mm512_castps_si512(x); }
static inline Vf from_bits(Vi x) { return _mm512_castsi512_ps(x); }
static inline Vi set1_bits(uint32_t x) { return _mm512_set1_epi32((int)x); }
static inline Vi add_bits(Vi a, Vi b) { return _mm512_add_epi32(a, b); }
static inline Vi and_bits(Vi a, Vi b) { return _mm512_and_si512(a, b); }
static inline Vi or_bits(Vi a, Vi b) { return _mm512_or_si512(a, b); }
template <int kBits>
static inline Vi shift_left(Vi a) {
  return _mm512_slli_epi32(a, kBits);
}
template <int kBits>
static inline Vi shift_right(Vi a) {
  return _mm512_srli_epi32(a, kBits);
}
static inline Vi load_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
}
static inline Vf load_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}

#elif defined(__AVX2__) && defined(__FMA__)

using Vf = __m256;
using Vi = __m256i;
constexpr int kLanes = 8;
constexpr bool kFastFma = true;

static inline Vf load(const float* p) { return _mm256_load_ps(p); }
static inline void store(float* p, Vf x) { _mm256_store_ps(p, x); }
static inline Vf set1(float x) { return _mm256_set1_ps(x); }
static inline Vf add(Vf a, Vf b) { return _mm256_add_ps(a, b); }
static inline Vf sub(Vf a, Vf b) { return _mm256_sub_ps(a, b); }
static inline Vf mul(Vf a, Vf b) { return _mm256_mul_ps(a, b); }
static inline Vf div(Vf a, Vf b) { return _mm256_div_ps(a, b); }
static inline Vf fma_rn(Vf a, Vf b, Vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline Vf max_or_b(Vf a, Vf b) { return _mm256_max_ps(a, b); }
static inline Vf min_or_b(Vf a, Vf b) { return _mm256_min_ps(a, b); }
static inline Vf select_ge(Vf x, Vf y, Vf yes, Vf no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, y, _CMP_GE_OQ));
}
static inline Vi bits(Vf x) { return _mm256_castps_si256(x); }
static inline Vf from_bits(Vi x) { return _mm256_castsi256_ps(x); }
static inline Vi set1_bits(uint32_t x) { return _mm256_set1_epi32((int)x); }
static inline Vi add_bits(Vi a, Vi b) { return _mm256_add_epi32(a, b); }
static inline Vi and_bits(Vi a, Vi b) { return _mm256_and_si256(a, b); }
static inline Vi or_bits(Vi a, Vi b) { return _mm256_or_si256(a, b); }
template <int kBits>
static inline Vi shift_left(Vi a) {
  return _mm256_slli_epi32(a, kBits);
}
template <int kBits>
static inline Vi shift_right(Vi a) {
  return _mm256_srli_epi32(a, kBits);
}
static inline Vi load_u8(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
static inline Vf load_i8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}

#elif defined(__SSE2__)

using Vf = __m128;
using Vi = __m128i;
constexpr int kLanes = 4;
constexpr bool kFastFma = false;

static inline Vf load(const float* p) { return _mm_load_ps(p); }
static inline void store(float* p, Vf x) { _mm_store_ps(p, x); }
static inline Vf set1(float x) { return _mm_set1_ps(x); }
static inline Vf add(Vf a, Vf b) { return _mm_add_ps(a, b); }
static inline Vf sub(Vf a, Vf b) { return _mm_sub_ps(a, b); }
static inline Vf mul(Vf a, Vf b) { return _mm_mul_ps(a, b); }
static inline Vf div(Vf a, Vf b) { return _mm_div_ps(a, b); }
static inline Vf fma_rn(Vf a, Vf b, Vf c) {
  alignas(16) float x[4], y[4], z[4];
  _mm_store_ps(x, a);
  _mm_store_ps(y, b);
  _mm_store_ps(z, c);
  for (int i = 0; i < 4; ++i) z[i] = fmaf(x[i], y[i], z[i]);
  return _mm_load_ps(z);
}
static inline Vf max_or_b(Vf a, Vf b) { return _mm_max_ps(a, b); }
static inline Vf min_or_b(Vf a, Vf b) { return _mm_min_ps(a, b); }
static inline Vf select_ge(Vf x, Vf y, Vf yes, Vf no) {
  const __m128 mask = _mm_cmpge_ps(x, y);
  return _mm_or_ps(_mm_and_ps(mask, yes), _mm_andnot_ps(mask, no));
}
static inline Vi bits(Vf x) { return _mm_castps_si128(x); }
static inline Vf from_bits(Vi x) { return _mm_castsi128_ps(x); }
static inline Vi set1_bits(uint32_t x) { return _mm_set1_epi32((int)x); }
static inline Vi add_bits(Vi a, Vi b) { return _mm_add_epi32(a, b); }
static inline Vi and_bits(Vi a, Vi b) { return _mm_and_si128(a, b); }
static inline Vi or_bits(Vi a, Vi b) { return _mm_or_si128(a, b); }
template <int kBits>
static inline Vi shift_left(Vi a) {
  return _mm_slli_epi32(a, kBits);
}
template <int kBits>
static inline Vi shift_right(Vi a) {
  return _mm_srli_epi32(a, kBits);
}
static inline Vi load_u8(const uint8_t* p) { return _mm_setr_epi32(p[0], p[1], p[2], p[3]); }
static inline Vf load_i8(const uint8_t* p) {
  return _mm_cvtepi32_ps(_mm_setr_epi32((int8_t)p[0], (int8_t)p[1], (int8_t)p[2], (int8_t)p[3]));
}

#else

constexpr int kLanes = 4;
constexpr bool kFastFma = false;
struct Vf {
  float x[kLanes];
};
struct Vi {
  uint32_t x[kLanes];
};

template <class To, class Op>
static inline To lanes(Op op) {
  To r;
  for (int i = 0; i < kLanes; ++i) r.x[i] = op(i);
  return r;
}
static inline Vf load(const float* p) {
  return lanes<Vf>([=](int i) { return p[i]; });
}
static inline void store(float* p, Vf a) {
  for (int i = 0; i < kLanes; ++i) p[i] = a.x[i];
}
static inline Vf set1(float a) {
  return lanes<Vf>([=](int) { return a; });
}
static inline Vf add(Vf a, Vf b) {
  return lanes<Vf>([=](int i) { return a.x[i] + b.x[i]; });
}
static inline Vf sub(Vf a, Vf b) {
  return lanes<Vf>([=](int i) { return a.x[i] - b.x[i]; });
}
static inline Vf mul(Vf a, Vf b) {
  return lanes<Vf>([=](int i) { return a.x[i] * b.x[i]; });
}
static inline Vf div(Vf a, Vf b) {
  return lanes<Vf>([=](int i) { return a.x[i] / b.x[i]; });
}
static inline Vf fma_rn(Vf a, Vf b, Vf c) {
  return lanes<Vf>([=](int i) { return fmaf(a.x[i], b.x[i], c.x[i]); });
}
static inline Vf max_or_b(Vf a, Vf b) {
  return lanes<Vf>([=](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
}
static inline Vf min_or_b(Vf a, Vf b) {
  return lanes<Vf>([=](int i) { return a.x[i] < b.x[i] ? a.x[i] : b.x[i]; });
}
static inline Vf select_ge(Vf x, Vf y, Vf yes, Vf no) {
  return lanes<Vf>([=](int i) { return x.x[i] >= y.x[i] ? yes.x[i] : no.x[i]; });
}
static inline Vi bits(Vf a) { return __builtin_bit_cast(Vi, a); }
static inline Vf from_bits(Vi a) { return __builtin_bit_cast(Vf, a); }
static inline Vi set1_bits(uint32_t a) {
  return lanes<Vi>([=](int) { return a; });
}
static inline Vi add_bits(Vi a, Vi b) {
  return lanes<Vi>([=](int i) { return a.x[i] + b.x[i]; });
}
static inline Vi and_bits(Vi a, Vi b) {
  return lanes<Vi>([=](int i) { return a.x[i] & b.x[i]; });
}
static inline Vi or_bits(Vi a, Vi b) {
  return lanes<Vi>([=](int i) { return a.x[i] | b.x[i]; });
}
template <int kBits>
static inline Vi shift_left(Vi a) {
  return lanes<Vi>([=](int i) { return a.x[i] << kBits; });
}
template <int kBits>
static inline Vi shift_right(Vi a) {
  return lanes<Vi>([=](int i) { return a.x[i] >> kBits; });
}
static inline Vi load_u8(const uint8_t* p) {
  return lanes<Vi>([=](int i) { return (uint32_t)p[i]; });
}
static inline Vf load_i8(const uint8_t* p) {
  return lanes<Vf>([=](int i) { return (float)(int8_t)p[i]; });
}

#endif

// a*b + c for products that FP32 holds exactly: one rounding either way.
static inline Vf add_exact_product(Vf a, Vf b, Vf c) {
  if constexpr (kFastFma) {
    return fma_rn(a, b, c);
  } else {
    return add(mul(a, b), c);
  }
}
