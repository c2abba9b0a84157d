// SPDX-License-Identifier: Apache-2.0
// Access to registers, that is to words in the frames of a kernel: they may have any 4-byte type,
// and a snapshot may look at a variable whose scope has ended, so the sanitizers must not look.
#pragma once

#include <cstdint>

#include "emu/thread.hpp"

namespace vca::emu {

#if defined(__clang__) || defined(__GNUC__)
#define VCA_EMU_RAW_ACCESS \
  __attribute__((no_sanitize("address"), no_sanitize("undefined"), noinline))
#endif

VCA_EMU_RAW_ACCESS inline void read_registers(const RegisterWord* base, uint32_t count,
                                              uint32_t* out) {
  for (uint32_t i = 0; i < count; ++i) out[i] = base[i];
}
VCA_EMU_RAW_ACCESS inline void write_registers(RegisterWord* base, uint32_t count,
                                               const uint32_t* values) {
  for (uint32_t i = 0; i < count; ++i) base[i] = values[i];
}
VCA_EMU_RAW_ACCESS inline void fill_registers(RegisterWord* base, uint32_t count, uint32_t value) {
  for (uint32_t i = 0; i < count; ++i) base[i] = value;
}
VCA_EMU_RAW_ACCESS inline bool registers_equal(const RegisterWord* base, uint32_t count,
                                               const uint32_t* values) {
  uint32_t difference = 0;
  for (uint32_t i = 0; i < count; ++i) difference |= base[i] ^ values[i];
  return difference == 0;
}
VCA_EMU_RAW_ACCESS inline bool registers_filled(const RegisterWord* base, uint32_t count,
                                                uint32_t value) {
  uint32_t difference = 0;
  for (uint32_t i = 0; i < count; ++i) difference |= base[i] ^ value;
  return difference == 0;
}

}  // namespace vca::emu
