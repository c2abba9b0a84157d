// SPDX-License-Identifier: Apache-2.0
// Instruction layer: strong types and the one macro that lets kernel sources compile for the device
// and for the host emulator. Each instruction has one declaration (the headers of this folder, with
// its section of PTX ISA 9.0) and two bodies: device/*.inl (nvcc) and emu/*.inl (any C++20
// compiler).
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define VCA_DEVICE __device__ __forceinline__
#else
#define VCA_DEVICE inline
#endif

namespace vca::ptx {

// Byte address in the shared::cta window.
struct SmemAddr {
  uint32_t value = 0;
};
VCA_DEVICE SmemAddr operator+(SmemAddr a, uint32_t bytes) { return {a.value + bytes}; }

// Byte address in the shared::cluster window: shared memory of any CTA of the cluster (mapa).
struct ClusterAddr {
  uint32_t value = 0;
};

// Matrix descriptor of wgmma (PTX ISA 9.7.15.5.1), built by desc.hpp. Two words, because only the
// start address in the low one ever moves: 64-bit additions would cost carries on the path to every
// MMA.
struct MatrixDesc {
  uint32_t low = 0, high = 0;
  VCA_DEVICE constexpr uint64_t bits() const { return uint64_t{high} << 32 | low; }
};

}  // namespace vca::ptx
