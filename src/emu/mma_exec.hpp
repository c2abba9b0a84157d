// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one wgmma on plain matrices, and the map from matrix elements to registers.
#pragma once

#include <cstdint>

namespace vca::emu {

enum class MmaType : uint8_t { s8, e4m3, tf32 };

const char* to_string(MmaType type);

inline constexpr uint32_t kMmaRows = 64;
inline constexpr uint32_t kMmaKBytes = 32;  // one k step: 32 codes or 8 tf32
inline constexpr uint32_t kMmaMaxN = 256;

// d (64 × n words) += a · bᵀ; a is 64 rows of 32 bytes, b is n rows of 32 bytes (K-major). s8:
// exact int32. e4m3, tf32: the specification's model of sm90; tf32 operands lose their low 13 bits.
void mma_execute(MmaType type, uint32_t n, const uint8_t* a, const uint8_t* b, uint32_t* d);

// Row and column of register i of thread t: PTX ISA 9.7.15.5.1.1, "Register layout for D".
constexpr uint32_t d_row(uint32_t thread, uint32_t reg) {
  return 16 * (thread / 32) + (thread % 32) / 4 + 8 * ((reg / 2) % 2);
}
constexpr uint32_t d_column(uint32_t thread, uint32_t reg) {
  return 8 * (reg / 4) + 2 * (thread % 4) + reg % 2;
}
// Row and first byte of the 4 bytes in register i of the A fragment, the same for 8-bit types
// (m64k32: four codes) and tf32 (m64k8: one value).
constexpr uint32_t a_row(uint32_t thread, uint32_t reg) {
  return 16 * (thread / 32) + (thread % 32) / 4 + 8 * (reg % 2);
}
constexpr uint32_t a_byte(uint32_t thread, uint32_t reg) {
  return 4 * (thread % 4) + 16 * (reg / 2);
}

}  // namespace vca::emu
