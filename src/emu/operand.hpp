// SPDX-License-Identifier: Apache-2.0
// Matrix descriptor of wgmma to the shared-memory addresses that the instruction reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vca::emu {

// PTX ISA 9.7.15.5.1.2.2, fields in bytes.
struct DecodedDescriptor {
  uint32_t start = 0;          // bits 0-13, times 16
  uint32_t leading_bytes = 0;  // bits 16-29, times 16
  uint32_t stride_bytes = 0;   // bits 32-45, times 16
  uint32_t base_offset = 0;    // bits 49-51
  uint32_t swizzle_bytes = 0;  // bits 62-63: width of a swizzled row: 128, 64, 32, or 0 for none
};

DecodedDescriptor decode_descriptor(uint64_t bits);

// Addresses of the 16-byte chunks of `rows` rows of one k step (32 bytes: two chunks a row), for a
// K-major operand. An error text instead where the descriptor means something this emulator does
// not model or the hardware would not read as intended.
std::string operand_chunks(uint64_t descriptor, uint32_t rows, std::vector<uint32_t>& chunks);

}  // namespace vca::emu
