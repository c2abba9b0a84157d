// SPDX-License-Identifier: Apache-2.0
#include "spec/mma_model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "spec/arith.hpp"
#include "spec/codes.hpp"

namespace vca::spec {
namespace {

constexpr const char* kPublished = "published";

constexpr int kE4m3MinExponent = -6;
constexpr int kF32MinExponent = -126;  // also of BF16 and tf32

// Below every exponent that takes part: what a zero product contributes to the maximum.
constexpr int kNoExponent = -100000;

constexpr MmaModel integer_model() {
  // Published in the sense that the PTX ISA defines the result.
  return {MmaKind::exact_int32, 0, 0, 32, 1, 0, false, kPublished};
}

constexpr MmaModel serial_model(int k_step, int min_exponent) {
  // The CPU backend is this code, compared by the tests: that is a measurement.
  return {MmaKind::serial_f32, 0, 0, k_step, 1, min_exponent, true, "measured"};
}

constexpr MmaModel fused_model(int frac_bits, int out_mantissa_bits, int k_step, int k_split,
                               int min_exponent) {
  return {MmaKind::fused_trunc, frac_bits, out_mantissa_bits, k_step, k_split,
          min_exponent,         false,     kPublished};
}

// Compared by this project on the chip: tests/ptx on an H200 (driver 580.159.04, 2026-11-29), every
// bit equal.
constexpr MmaModel measured(MmaModel model) {
  model.measured = true;
  model.evidence = "measured";
  return model;
}

int k_step_of(Instr instr) {
  if (instr == Instr::bf16) return 16;
  if (instr == Instr::mean_tf32) return 8;
  return 32;
}

struct Parts {
  double significand;  // signed, |s| in [1, 2), or [0, 1) for subnormals of the format
  int exponent;
};

// exact: a power-of-two scaling of at most 24 significant bits
Parts split(float x, int min_exponent) {
  if (x == 0.0f) return {0.0, kNoExponent};
  const int exponent = std::max(std::ilogb(x), min_exponent);
  return {std::ldexp(static_cast<double>(x), -exponent), exponent};
}

// The FP32 bits of sum · 2^exponent truncated towards zero to `mantissa_bits`.
float truncate_result(int64_t sum, int exponent, int mantissa_bits) {
  if (sum == 0) return 0.0f;
  // |sum| < 2⁵³: exact, and so is the scaling, whose exponent stays within a double's range.
  const double value = std::ldexp(static_cast<double>(sum), exponent);
  const int value_exponent = std::max(std::ilogb(value), kF32MinExponent);
  const int grid = value_exponent - mantissa_bits;
  const double truncated = std::ldexp(std::trunc(std::ldexp(value, -grid)), grid);
  if (std::fabs(truncated) > static_cast<double>(std::numeric_limits<float>::max())) {
    return truncated > 0 ? std::numeric_limits<float>::infinity()
                         : -std::numeric_limits<float>::infinity();
  }
  return static_cast<float>(truncated + 0.0);  // a result truncated away is +0
}

// One column of one group, for any operand format and any values: the definition.
float fused_column(const MmaModel& model, const float* a, const float* b, int64_t ldb, int64_t k,
                   float c) {
  double check = static_cast<double>(c);
  for (int64_t i = 0; i < k; ++i) {
    check += static_cast<double>(a[i]) * static_cast<double>(b[i * ldb]);
  }
  if (std::isnan(check)) return float_from_bits(0x7FFFFFFFu);
  if (std::isinf(check)) return static_cast<float>(check);

  int max_exponent = std::max(split(c, kF32MinExponent).exponent, kF32MinExponent);
  for (int64_t i = 0; i < k; ++i) {
    const Parts x = split(a[i], model.min_exponent);
    const Parts y = split(b[i * ldb], model.min_exponent);
    max_exponent = std::max(max_exponent, x.exponent + y.exponent);
  }
  // A term's scaled value is below 2^(F+2): it and the sum of a group fit an int64.
  const int shift = model.frac_bits - max_exponent;
  int64_t sum = static_cast<int64_t>(std::ldexp(static_cast<double>(c), shift));
  for (int64_t i = 0; i < k; ++i) {
    const double product = static_cast<double>(a[i]) * static_cast<double>(b[i * ldb]);
    sum += static_cast<int64_t>(std::ldexp(product, shift));
  }
  return truncate_result(sum, -shift, model.out_mantissa_bits);
}

// Columns handled at once by the fast path; its arrays stay on the stack.
constexpr int64_t kChunk = 64;

// Exact sums of truncated terms: 33 terms below 2^(F+2) fit an int32 for F <= 23, and a double
// (as integers) for any F in use.
inline void add_term(int32_t& sum, float term) { sum += static_cast<int32_t>(term); }
inline void add_term(double& sum, float term) {
  sum += static_cast<double>(static_cast<float>(static_cast<int32_t>(term)));
}

// Sum in units of 2^(exponent − F), truncated to the output mantissa. Results are normal here, so
// the truncation is a mask; the scaling is exact or overflows to Inf.
inline float finish_sum(int32_t sum, int scale_exponent, int mantissa_bits) {
  const uint32_t mask = ~((1u << (23 - mantissa_bits)) - 1u);
  const float head = float_from_bits(float_bits(static_cast<float>(sum)) & mask);
  return head * float_from_bits(static_cast<uint32_t>(scale_exponent + 127) << 23);
}
inline float finish_sum(double sum, int scale_exponent, int mantissa_bits) {
  const uint64_t mask = ~((uint64_t{1} << (52 - mantissa_bits)) - 1u);
  const double head = std::bit_cast<double>(std::bit_cast<uint64_t>(sum) & mask);
  return static_cast<float>(
      head * std::bit_cast<double>(static_cast<uint64_t>(scale_exponent + 1023) << 52));
}

// One group, up to kChunk columns of E4M3 operands. The same result as fused_column, arranged so
// that a compiler vectorises it over the columns. E4M3 products have at most 8 significant bits
// and lie in [2⁻¹⁸, 2¹⁸): exact in FP32, also after the scaling.
template <class Sum>
void fused_group_e4m3(const MmaModel& model, const float* a, const float* b, int64_t ldb,
                      int64_t group, int64_t n, float* c) {
  constexpr int32_t kMinField = 127 + kE4m3MinExponent;
  // Below this the scale could leave FP32's range; only an accumulator that no kernel reaches is.
  constexpr int32_t kLowestField = 127 - 90;
  int32_t field[kChunk];  // biased exponent of the largest term
  uint32_t special = 0;
  for (int64_t j = 0; j < n; ++j) {
    const int32_t exponent = static_cast<int32_t>((float_bits(c[j]) >> 23) & 0xFFu);
    field[j] = exponent;
    special |= static_cast<uint32_t>(exponent == 0xFF);
    special |= static_cast<uint32_t>(exponent < kLowestField && c[j] != 0.0f);
  }
  for (int64_t i = 0; i < group; ++i) {
    const uint32_t a_bits = float_bits(a[i]);
    if ((a_bits << 1) == 0 && special == 0) {
      // Zero products take no part, but 0·NaN does: look before skipping.
      for (int64_t j = 0; j < n; ++j) special |= static_cast<uint32_t>(!is_finite(b[i * ldb + j]));
      continue;
    }
    const int32_t a_field = std::max(static_cast<int32_t>((a_bits >> 23) & 0xFFu), kMinField);
    special |= static_cast<uint32_t>(!is_finite(a[i]));
    for (int64_t j = 0; j < n; ++j) {
      const uint32_t bits = float_bits(b[i * ldb + j]);
      const int32_t raw = static_cast<int32_t>((bits >> 23) & 0xFFu);
      special |= static_cast<uint32_t>(raw == 0xFF);
      const int32_t product = (raw > kMinField ? raw : kMinField) + a_field - 127;
      const int32_t candidate = (bits << 1) != 0 ? product : 0;
      field[j] = candidate > field[j] ? candidate : field[j];
    }
  }
  if (special != 0) {
    for (int64_t j = 0; j < n; ++j) c[j] = fused_column(model, a, b + j, ldb, group, c[j]);
    return;
  }
  float scale[kChunk];
  Sum sum[kChunk];
  for (int64_t j = 0; j < n; ++j) {
    // All-zero columns have field 0; any scale gives them 0.
    field[j] = field[j] > kLowestField ? field[j] : kLowestField;
    scale[j] = float_from_bits(static_cast<uint32_t>(model.frac_bits + 254 - field[j]) << 23);
    sum[j] = 0;
    add_term(sum[j], c[j] * scale[j]);
  }
  for (int64_t i = 0; i < group; ++i) {
    if (a[i] == 0.0f) continue;
    for (int64_t j = 0; j < n; ++j) add_term(sum[j], a[i] * b[i * ldb + j] * scale[j]);
  }
  for (int64_t j = 0; j < n; ++j) {
    c[j] = finish_sum(sum[j], field[j] - 127 - model.frac_bits, model.out_mantissa_bits);
  }
}

void fused_row(const MmaModel& model, const float* a, const float* b, int64_t ldb, int64_t k,
               int64_t n, float* c) {
  const int64_t group = model.k_step / model.k_split;
  const bool is_e4m3 = model.min_exponent == kE4m3MinExponent;
  for (int64_t k0 = 0; k0 < k; k0 += group) {
    const int64_t count = std::min(group, k - k0);
    const float* b_rows = b + k0 * ldb;
    for (int64_t j0 = 0; j0 < n; j0 += kChunk) {
      const int64_t columns = std::min(kChunk, n - j0);
      if (is_e4m3 && model.frac_bits <= 23) {
        fused_group_e4m3<int32_t>(model, a + k0, b_rows + j0, ldb, count, columns, c + j0);
      } else if (is_e4m3) {
        fused_group_e4m3<double>(model, a + k0, b_rows + j0, ldb, count, columns, c + j0);
      } else {
        for (int64_t j = j0; j < j0 + columns; ++j) {
          c[j] = fused_column(model, a + k0, b_rows + j, ldb, count, c[j]);
        }
      }
    }
  }
}

template <class Left>
void integer_row(const Left* a, const int8_t* b, int64_t ldb, int64_t k, int64_t n, int32_t* c) {
  for (int64_t i = 0; i < k; ++i) {
    const int32_t left = a[i];
    if (left == 0) continue;
    const int8_t* row = b + i * ldb;
    for (int64_t j = 0; j < n; ++j) c[j] += left * row[j];
  }
}

}  // namespace

MmaModel mma_model(Target target, Instr instr) {
  if (instr == Instr::qk_int8 || instr == Instr::pv_int8) {
    const bool ran =
        target == Target::sm90 && instr == Instr::qk_int8;  // no kernel has u8 x s8 yet
    return ran ? measured(integer_model()) : integer_model();
  }
  const int k_step = k_step_of(instr);
  const bool is_e4m3 = instr == Instr::qk_e4m3 || instr == Instr::pv_e4m3;
  const int min_exponent = is_e4m3 ? kE4m3MinExponent : kF32MinExponent;
  switch (target) {
    case Target::cpu:
      return serial_model(k_step, min_exponent);
    case Target::sm89:
      // mma.sync: every shape in use is summed in two halves of k.
      return is_e4m3 ? fused_model(13, 13, k_step, 2, min_exponent)
                     : fused_model(24, 23, k_step, 2, min_exponent);
    case Target::sm90:
      // wgmma. BF16 has no kernel here and stays as published.
      if (instr == Instr::bf16) return fused_model(25, 23, k_step, 1, min_exponent);
      return measured(is_e4m3 ? fused_model(13, 13, k_step, 1, min_exponent)
                              : fused_model(25, 23, k_step, 1, min_exponent));
    case Target::sm100:
    case Target::sm103:  // tcgen05
    case Target::sm120:  // mma.sync
      return fused_model(25, 23, k_step, 1, min_exponent);
  }
  std::fprintf(stderr,
               "vcattn: mma_model: got target %d, allowed cpu, sm89, sm90, sm100, sm103, "
               "sm120\n",
               static_cast<int>(target));
  std::abort();
}

void mma_accumulate_f32(const MmaModel& model, const float* a, const float* b, int64_t ldb,
                        int64_t k, int64_t n, float* c) {
  switch (model.kind) {
    case MmaKind::serial_f32:
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t j = 0; j < n; ++j) c[j] = add(c[j], mul(a[i], b[i * ldb + j]));
      }
      return;
    case MmaKind::fused_trunc:
      fused_row(model, a, b, ldb, k, n, c);
      return;
    case MmaKind::exact_int32:
      break;
  }
  std::fprintf(stderr,
               "vcattn: mma_accumulate_f32: got an integer model, allowed serial_f32 and "
               "fused_trunc; use mma_accumulate_i32\n");
  std::abort();
}

void mma_dot_f32(const MmaModel& model, const float* a, int64_t lda, const float* b, int64_t ldb,
                 int64_t m, int64_t n, int64_t k, float* c, int64_t ldc) {
  for (int64_t row = 0; row < m; ++row) {
    mma_accumulate_f32(model, a + row * lda, b, ldb, k, n, c + row * ldc);
  }
}

void mma_accumulate_i32(const int8_t* a, const int8_t* b, int64_t ldb, int64_t k, int64_t n,
                        int32_t* c) {
  integer_row(a, b, ldb, k, n, c);
}

void mma_accumulate_i32(const uint8_t* a, const int8_t* b, int64_t ldb, int64_t k, int64_t n,
                        int32_t* c) {
  integer_row(a, b, ldb, k, n, c);
}

}  // namespace vca::spec
