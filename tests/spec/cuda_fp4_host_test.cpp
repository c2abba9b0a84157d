// SPDX-License-Identifier: Apache-2.0
// A second opinion on E2M1: the host functions of the CUDA toolkit's cuda_fp4.h, where its headers
// are present (12.8 or newer). Only headers are used.
#include <gtest/gtest.h>

#if defined(VCA_HAVE_CUDA_HEADERS) && __has_include(<cuda_fp4.h>)

#include <cuda_fp4.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "spec/fp4.hpp"

namespace vca::spec {
namespace {

void compare(float x) {
  const auto theirs =
      static_cast<uint8_t>(__nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest) & 15);
  ASSERT_EQ(e2m1_encode(x), theirs) << x << " " << float_bits(x);
}

// All 2^32 floats with VCA_EXHAUSTIVE set; else all upper halves with lower halves around ties.
TEST(CudaFp4Host, EncodeIsTheSameCode) {
  for (uint32_t top = 0; top < 65536; ++top)
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      compare(float_from_bits((top << 16) | low));
  if (std::getenv("VCA_EXHAUSTIVE") == nullptr) return;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32) && !HasFatalFailure(); ++bits)
    compare(float_from_bits(static_cast<uint32_t>(bits)));
}

TEST(CudaFp4Host, DecodeIsTheSameValue) {
  for (uint8_t code = 0; code < 16; ++code) {
    const __half_raw half = __nv_cvt_fp4_to_halfraw(code, __NV_E2M1);
    EXPECT_EQ(float_bits(fp16_decode(half.x)), float_bits(e2m1_decode(code))) << int{code};
  }
}

TEST(CudaFp4Host, PairsPutTheFirstElementInTheLowNibble) {
  const auto pair = __nv_cvt_float2_to_fp4x2(make_float2(1.5f, -4.0f), __NV_E2M1, cudaRoundNearest);
  EXPECT_EQ(pair, e2m1_encode(1.5f) | (e2m1_encode(-4.0f) << 4));
}

}  // namespace
}  // namespace vca::spec

#else

TEST(CudaFp4Host, SameBytesAsTheToolkit) {
  GTEST_SKIP()
      << "cuda_fp4.h was not found when this test was built: install the CUDA headers (12.8 "
         "or newer) and run cmake again to compare with them";
}

#endif
