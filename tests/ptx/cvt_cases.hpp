// SPDX-License-Identifier: Apache-2.0
// Conversions and explicit arithmetic against spec/arith.hpp and spec/codes.hpp.
#pragma once

#include <cmath>

#include "ptx/harness.hpp"
#include "spec/arith.hpp"
#include "spec/codes.hpp"

namespace vca::tests {

// Values at which conversions and roundings change, and random ones of every magnitude.
inline std::vector<float> interesting_floats() {
  std::vector<float> x = {0.0f,      -0.0f,     0.5f,          -0.5f,          1.0f,     1.5f,
                          2.5f,      -1.5f,     126.0f,        126.5f,         127.5f,   254.5f,
                          255.0f,    255.5f,    256.0f,        -1e6f,          1e6f,     448.0f,
                          449.0f,    464.0f,    465.0f,        0x1p-9f,        0x1p-10f, 0x1.8p-10f,
                          0x1p-126f, 0x1p-149f, 3.4028234e38f, -3.4028234e38f, 65504.0f, 65519.0f,
                          65520.0f,  0x1p-25f,  0x1.0002p0f,   0x1.0006p0f};
  for (int i = -8; i < 520; ++i) x.push_back(0.5f * static_cast<float>(i));
  Numbers numbers(7);
  while (x.size() < 4096) {
    x.push_back(numbers.uniform(300.0f));
    x.push_back(numbers.uniform(2.0f));
    const uint32_t bits = numbers.bits();
    if ((bits & 0x7F800000u) != 0x7F800000u) x.push_back(spec::float_from_bits(bits));
  }
  x.resize(4096);
  return x;
}

struct UnaryKernel {
  const float* x;
  float* rcp;
  uint32_t* tf32;
  float* from_int;
  uint32_t* u8x4;
  uint32_t* e4m3x4;
  uint32_t* bf16x2;
  uint32_t* f16x2;
  uint32_t n;
  VCA_DEVICE void operator()() const {
    for (uint32_t i = ptx::thread_index(); i < n; i += 128) {
      const float y = x[(i + 1) % n], z = x[(i + 2) % n], w = x[(i + 3) % n];
      rcp[i] = ptx::rcp_rn(x[i]);
      tf32[i] = ptx::cvt_rna_tf32_f32(x[i]);
      from_int[i] = ptx::cvt_rn_f32_s32(static_cast<int32_t>(ptx::float_bits(x[i])));
      u8x4[i] = ptx::cvt_pack_sat_u8x4_f32(x[i], y, z, w);
      e4m3x4[i] = ptx::cvt_rn_satfinite_e4m3x4_f32(x[i], y, z, w);
      bf16x2[i] = ptx::cvt_rn_bf16x2_f32(x[i], y);
      f16x2[i] = ptx::cvt_rn_f16x2_f32(x[i], y);
    }
  }
};

inline void unary_conversions(Report& report) {
  Buffer<float> x(interesting_floats());
  const uint32_t n = static_cast<uint32_t>(x.size());
  Buffer<float> rcp(n), from_int(n);
  Buffer<uint32_t> tf32(n), u8x4(n), e4m3x4(n), bf16x2(n), f16x2(n);
  x.upload();
  std::vector<float> want_rcp(n), want_from_int(n);
  std::vector<uint32_t> want_tf32(n), want_u8(n), want_e4m3(n), want_bf16(n), want_f16(n);
  for (uint32_t i = 0; i < n; ++i) {
    const float v[4] = {x[i], x[(i + 1) % n], x[(i + 2) % n], x[(i + 3) % n]};
    want_rcp[i] = 1.0f / v[0];
    want_tf32[i] = spec::float_bits(spec::rna_tf32(v[0]));
    want_from_int[i] = static_cast<float>(static_cast<int32_t>(spec::float_bits(v[0])));
    for (int b = 0; b < 4; ++b) {
      want_u8[i] |= uint32_t{spec::f2ip_code(v[b])} << (8 * b);
      want_e4m3[i] |= uint32_t{spec::e4m3_encode(v[b])} << (8 * b);
    }
    for (int b = 0; b < 2; ++b) {
      want_bf16[i] |= uint32_t{spec::bf16_encode(v[b])} << (16 * b);
      want_f16[i] |= uint32_t{spec::fp16_encode(v[b])} << (16 * b);
    }
  }
  const UnaryKernel kernel{x.device(),        rcp.device(),   tf32.device(),
                           from_int.device(), u8x4.device(),  e4m3x4.device(),
                           bf16x2.device(),   f16x2.device(), n};
  run(report, {1, 128, 0}, kernel, [&] {
    expect_equal(report, "rcp.rn", rcp, want_rcp);
    expect_equal(report, "cvt.rna.tf32", tf32, want_tf32);
    expect_equal(report, "cvt.rn.f32.s32", from_int, want_from_int);
    expect_equal(report, "cvt.pack.sat.u8", u8x4, want_u8);
    expect_equal(report, "cvt.rn.satfinite.e4m3x2", e4m3x4, want_e4m3);
    expect_equal(report, "cvt.rn.bf16x2", bf16x2, want_bf16);
    expect_equal(report, "cvt.rn.f16x2", f16x2, want_f16);
  });
}

struct BinaryKernel {
  const float* x;
  const float* y;
  const float* z;
  float* out;  // [10][n]
  uint32_t n;
  VCA_DEVICE void operator()() const {
    for (uint32_t i = ptx::thread_index(); i < n; i += 128) {
      out[i] = ptx::mul_rp(x[i], y[i]);
      out[n + i] = ptx::sub_rm(x[i], y[i]);
      out[2 * n + i] = ptx::mul_rn(x[i], y[i]);
      out[3 * n + i] = ptx::add_rn(x[i], y[i]);
      out[4 * n + i] = ptx::fma_rn(x[i], y[i], z[i]);
      out[5 * n + i] = ptx::max_f32(x[i], y[i]);
      out[7 * n + i] = ptx::add_rp(x[i], y[i]);
      out[8 * n + i] = ptx::fma_rn_sat(x[i], y[i], z[i]);
      out[9 * n + i] = ptx::fma_rm(x[i], y[i], z[i]);
      out[6 * n + i] = ptx::bits_float(static_cast<uint32_t>(ptx::max3_s32(
          static_cast<int32_t>(ptx::float_bits(x[i])), static_cast<int32_t>(ptx::float_bits(y[i])),
          static_cast<int32_t>(ptx::float_bits(z[i])))));
    }
  }
};

inline void directed_rounding(Report& report) {
  const std::vector<float> base = interesting_floats();
  const uint32_t n = static_cast<uint32_t>(base.size());
  std::vector<float> a(n), b(n), c(n);
  for (uint32_t i = 0; i < n; ++i) {
    a[i] = base[i];
    b[i] = base[(i * 2654435761u) % n];
    c[i] = base[(i * 40503u + 11u) % n];
  }
  Buffer<float> x(a), y(b), z(c), out(size_t{10} * n);
  x.upload();
  y.upload();
  z.upload();
  std::vector<float> want(size_t{10} * n);
  for (uint32_t i = 0; i < n; ++i) {
    want[i] = spec::mul_ru(a[i], b[i]);
    want[n + i] = spec::sub_rd(a[i], b[i]);
    want[7 * n + i] = spec::add_ru(a[i], b[i]);
    want[8 * n + i] = spec::fma_sat(a[i], b[i], c[i]);
    want[9 * n + i] = spec::fma_rd(a[i], b[i], c[i]);
    want[2 * n + i] = a[i] * b[i];
    want[3 * n + i] = a[i] + b[i];
    want[4 * n + i] = std::fma(a[i], b[i], c[i]);
    want[5 * n + i] = std::fmax(a[i], b[i]);
    // max.f32 has +0 above -0; fmax may return either.
    if (a[i] == 0.0f && b[i] == 0.0f) want[5 * n + i] = a[i] + b[i];
    int32_t bits = static_cast<int32_t>(spec::float_bits(a[i]));
    bits = std::max(bits, static_cast<int32_t>(spec::float_bits(b[i])));
    bits = std::max(bits, static_cast<int32_t>(spec::float_bits(c[i])));
    want[6 * n + i] = spec::float_from_bits(static_cast<uint32_t>(bits));
  }
  const BinaryKernel kernel{x.device(), y.device(), z.device(), out.device(), n};
  run(report, {1, 128, 0}, kernel, [&] {
    expect_equal(report, "mul.rp sub.rm mul add fma max max3 add.rp fma.sat fma.rm", out, want);
  });
}

// Differences of two maxima in units of 1/32 code (E2), from the largest that a weight can have to
// below the smallest.
struct Exp2Kernel {
  static constexpr int kFirst = -32 * 1024, kLast = 32 * 128;
  float* out;
  uint32_t n;
  static constexpr float difference(uint32_t i) {
    return static_cast<float>(static_cast<int32_t>(i) + kFirst) * 0.03125f;
  }
  VCA_DEVICE void operator()() const {
    for (uint32_t i = ptx::thread_index(); i < n; i += 128)
      out[i] = ptx::ex2_approx_ftz(ptx::mul_rn(difference(i), 0.125f));
  }
};

// PTX ISA 9.7.3.20 states a maximum relative error of 2^-22; the upper bits, which a block's weight
// keeps, must be the specification's.
inline void exp2_approximation(Report& report) {
  const uint32_t n = Exp2Kernel::kLast - Exp2Kernel::kFirst + 1;
  Buffer<float> out(n);
  run(report, {1, 128, 0}, Exp2Kernel{out.device(), n}, [&] {
    out.download();
    report.count(n);
    for (uint32_t i = 0; i < n; ++i) {
      const float d = Exp2Kernel::difference(i);
      const double exact = d < -1008.0f ? 0.0 : std::exp2(static_cast<double>(d) / 8);
      const float weight = spec::float_from_bits(spec::float_bits(out[i]) & spec::kWeightMask);
      if (std::fabs(static_cast<double>(out[i]) - exact) <= exact * 0x1p-22 &&
          spec::float_bits(weight) == spec::float_bits(spec::block_weight(d)))
        continue;
      report.fail("ex2.approx.ftz(" + std::to_string(d) + "/8) = " + std::to_string(out[i]));
    }
  });
}

}  // namespace vca::tests
