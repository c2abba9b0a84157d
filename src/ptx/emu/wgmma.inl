// SPDX-License-Identifier: Apache-2.0
// Emulator bodies of wgmma.hpp.
#pragma once

#include "emu/ops.hpp"

namespace vca::ptx {

VCA_DEVICE void wgmma_fence() { emu::ops::wgmma_fence(); }
VCA_DEVICE void wgmma_commit_group() { emu::ops::wgmma_commit(); }
template <int kPending>
VCA_DEVICE void wgmma_wait_group() {
  static_assert(kPending >= 0 && kPending <= 7, "PTX ISA 9.7.15.7.3: N is 0 to 7");
  emu::ops::wgmma_wait(kPending);
}

VCA_DEVICE void keep(float& x) { emu::ops::keep(&x); }
VCA_DEVICE void keep(int32_t& x) { emu::ops::keep(&x); }
VCA_DEVICE void keep(uint32_t& x) { emu::ops::keep(&x); }

VCA_DEVICE void wgmma_m64n128k32_s32_s8_s8(int32_t (&d)[64], MatrixDesc a, MatrixDesc b,
                                           bool accumulate) {
  emu::ops::wgmma({"wgmma.m64n128k32.s32.s8.s8", emu::MmaType::s8, 128, d, nullptr, a.bits(),
                   b.bits(), accumulate});
}
VCA_DEVICE void wgmma_m64n128k32_s32_s8_s8(int32_t (&d)[64], const uint32_t (&a)[4], MatrixDesc b,
                                           bool accumulate) {
  emu::ops::wgmma(
      {"wgmma.m64n128k32.s32.s8.s8", emu::MmaType::s8, 128, d, a, 0, b.bits(), accumulate});
}
VCA_DEVICE void wgmma_m64n128k32_f32_e4m3_e4m3(float (&d)[64], MatrixDesc a, MatrixDesc b,
                                               bool accumulate) {
  emu::ops::wgmma({"wgmma.m64n128k32.f32.e4m3.e4m3", emu::MmaType::e4m3, 128, d, nullptr, a.bits(),
                   b.bits(), accumulate});
}
VCA_DEVICE void wgmma_m64n136k32_f32_e4m3_e4m3(float (&d)[68], const uint32_t* a, MatrixDesc b,
                                               bool accumulate) {
  emu::ops::wgmma(
      {"wgmma.m64n136k32.f32.e4m3.e4m3", emu::MmaType::e4m3, 136, d, a, 0, b.bits(), accumulate});
}
VCA_DEVICE void wgmma_m64n72k32_f32_e4m3_e4m3(float (&d)[36], const uint32_t* a, MatrixDesc b,
                                              bool accumulate) {
  emu::ops::wgmma(
      {"wgmma.m64n72k32.f32.e4m3.e4m3", emu::MmaType::e4m3, 72, d, a, 0, b.bits(), accumulate});
}
VCA_DEVICE void wgmma_m64n128k32_f32_e4m3_e4m3(float* d, const uint32_t* a, MatrixDesc b,
                                               bool accumulate) {
  emu::ops::wgmma(
      {"wgmma.m64n128k32.f32.e4m3.e4m3", emu::MmaType::e4m3, 128, d, a, 0, b.bits(), accumulate});
}
VCA_DEVICE void wgmma_m64n64k32_f32_e4m3_e4m3(float* d, const uint32_t* a, MatrixDesc b,
                                              bool accumulate) {
  emu::ops::wgmma(
      {"wgmma.m64n64k32.f32.e4m3.e4m3", emu::MmaType::e4m3, 64, d, a, 0, b.bits(), accumulate});
}
VCA_DEVICE void wgmma_m64n128k8_f32_tf32_tf32(float* d, const uint32_t* a, MatrixDesc b,
                                              bool accumulate) {
  emu::ops::wgmma(
      {"wgmma.m64n128k8.f32.tf32.tf32", emu::MmaType::tf32, 128, d, a, 0, b.bits(), accumulate});
}
VCA_DEVICE void wgmma_m64n64k8_f32_tf32_tf32(float* d, const uint32_t* a, MatrixDesc b,
                                             bool accumulate) {
  emu::ops::wgmma(
      {"wgmma.m64n64k8.f32.tf32.tf32", emu::MmaType::tf32, 64, d, a, 0, b.bits(), accumulate});
}

}  // namespace vca::ptx
