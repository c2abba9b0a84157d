// SPDX-License-Identifier: Apache-2.0
// A second opinion on the 8-bit formats: the host functions of the CUDA toolkit's cuda_fp8.h, where
// its headers are present. Only headers are used; no CUDA library, no device.
#include <gtest/gtest.h>

#if defined(VCA_HAVE_CUDA_HEADERS)

#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "spec/codes.hpp"
#include "spec/fp4.hpp"

namespace vca::spec {
namespace {

// All BF16 and FP16 patterns, and every upper half of a float with lower halves around the ties.
std::vector<float> inputs() {
  std::vector<float> out;
  for (uint32_t top = 0; top < 65536; ++top) {
    out.push_back(fp16_decode(static_cast<uint16_t>(top)));
    for (uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      out.push_back(float_from_bits((top << 16) | low));
    }
  }
  return out;
}

void compare_e4m3(float x) {
  const uint8_t theirs = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  if (std::isnan(x)) {
    // Policies differ: cuda_fp8.h gives 0x7F always, the specification keeps the sign.
    ASSERT_EQ(theirs, 0x7F);
    ASSERT_EQ(e4m3_encode(x) & 0x7F, 0x7F);
    ASSERT_EQ(ue4m3_encode(x), 0x7F);
    return;
  }
  ASSERT_EQ(e4m3_encode(x), theirs) << x;
  ASSERT_EQ(ue4m3_encode(x), std::signbit(x) ? 0 : theirs) << x;
}

// E4M3, and UE4M3, which is its positive half. All 2^32 floats with VCA_EXHAUSTIVE set.
TEST(CudaFp8Host, E4m3EncodeIsTheSameByte) {
  for (const float x : inputs()) compare_e4m3(x);
  if (std::getenv("VCA_EXHAUSTIVE") == nullptr) return;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32) && !HasFatalFailure(); ++bits)
    compare_e4m3(float_from_bits(static_cast<uint32_t>(bits)));
}

TEST(CudaFp8Host, E4m3DecodeIsTheSameValue) {
  for (uint32_t code = 0; code < 256; ++code) {
    const __half_raw half =
        __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3);
    const float theirs = fp16_decode(half.x);
    const float ours = e4m3_decode(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(theirs) && std::isnan(ours)) << code;
    } else {
      EXPECT_EQ(float_bits(theirs), float_bits(ours)) << code;
    }
  }
}

TEST(CudaFp8Host, Ue8m0EncodeUpIsTheSameByte) {
  for (float x : inputs()) {
    const uint8_t theirs = __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf);
    ASSERT_EQ(ue8m0_encode_up(x), theirs) << x << " " << float_bits(x);
  }
}

TEST(CudaFp8Host, Ue8m0DecodeIsTheSameValue) {
  for (uint32_t code = 0; code < 256; ++code) {
    const __nv_bfloat16_raw raw = __nv_cvt_e8m0_to_bf16raw(static_cast<__nv_fp8_storage_t>(code));
    const float theirs = bf16_decode(raw.x);
    const float ours = ue8m0_decode(static_cast<uint8_t>(code));
    if (code == 255) {
      EXPECT_TRUE(std::isnan(theirs) && std::isnan(ours));
    } else {
      EXPECT_EQ(float_bits(theirs), float_bits(ours)) << code;
    }
  }
}

TEST(CudaFp8Host, Bf16AndFp16InputsThroughTheirOwnEntryPoints) {
  for (uint32_t code = 0; code < 65536; ++code) {
    __half_raw half;
    half.x = static_cast<unsigned short>(code);
    __nv_bfloat16_raw bfloat;
    bfloat.x = static_cast<unsigned short>(code);
    const float from_half = fp16_decode(half.x);
    const float from_bfloat = bf16_decode(bfloat.x);
    if (!std::isnan(from_half)) {
      ASSERT_EQ(__nv_cvt_halfraw_to_fp8(half, __NV_SATFINITE, __NV_E4M3), e4m3_encode(from_half));
    }
    if (!std::isnan(from_bfloat)) {
      ASSERT_EQ(__nv_cvt_bfloat16raw_to_fp8(bfloat, __NV_SATFINITE, __NV_E4M3),
                e4m3_encode(from_bfloat));
    }
  }
}

}  // namespace
}  // namespace vca::spec

#else

TEST(CudaFp8Host, SameBytesAsTheToolkit) {
  GTEST_SKIP() << "cuda_fp8.h was not found when this test was built: install the CUDA headers and "
                  "run cmake again to compare with them";
}

#endif
