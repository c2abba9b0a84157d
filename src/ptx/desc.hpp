// SPDX-License-Identifier: Apache-2.0
// Matrix descriptors as constexpr integer functions (PTX ISA 9.7.15.5.1.2.2, "Matrix descriptor
// format").
//
//   bits  0-13  start address / 16        bits 32-45  stride byte offset / 16 (between groups of 8
//   rows) bits 16-29  leading byte offset / 16  bits 62-63  swizzle: 0 none, 1 128 B, 2 64 B, 3 32
//   B
//
// K-major operands with a swizzle ignore the leading offset (1 by convention). A tile row is as
// wide as the swizzle, so 8 rows are 8 * width bytes: the stride. Advancing K inside the swizzled
// row adds to the start address.
#pragma once

#include "ptx/types.hpp"

namespace vca::ptx {

enum class Swizzle : uint32_t { none = 0, b128 = 1, b64 = 2, b32 = 3 };

constexpr uint32_t swizzle_row_bytes(Swizzle s) {
  return s == Swizzle::b128 ? 128u : s == Swizzle::b64 ? 64u : 32u;
}

constexpr uint64_t matrix_desc_bits(uint32_t smem_address, Swizzle s) {
  const uint64_t stride_bytes = 8u * swizzle_row_bytes(s);
  return (uint64_t{(smem_address & 0x3FFFFu) >> 4}) | (uint64_t{1} << 16) |
         ((stride_bytes >> 4) << 32) | (uint64_t{static_cast<uint32_t>(s)} << 62);
}

// The word that says how a tile is laid out, and not where.
constexpr uint32_t desc_high(Swizzle s) {
  return static_cast<uint32_t>(matrix_desc_bits(0, s) >> 32);
}

VCA_DEVICE MatrixDesc matrix_desc(SmemAddr start, Swizzle s) {
  return {(start.value & 0x3FFFFu) >> 4 | 1u << 16, desc_high(s)};
}
// `bytes` further along K (inside the swizzled row) or along tiles: a multiple of 16. The start
// address is a 14-bit field below a zero bit, and shared memory is smaller than it reaches: no
// carry into the next field.
VCA_DEVICE MatrixDesc advance(MatrixDesc d, uint32_t bytes) {
  return {d.low + (bytes >> 4), d.high};
}
// Of tile `index` in a row of tiles of `bytes`, a multiple of 16: one multiply-add.
VCA_DEVICE MatrixDesc tile_desc(MatrixDesc first, uint32_t index, uint32_t bytes) {
  return {first.low + index * (bytes >> 4), first.high};
}

// The swizzle itself: 16-byte chunk index xor row bits (Figure "128B swizzle mode" and its 64 and
// 32 byte forms).
constexpr uint32_t swizzled_offset(uint32_t row, uint32_t byte, Swizzle s) {
  const uint32_t width = swizzle_row_bytes(s);
  const uint32_t rows_per_pattern = 128u / width;  // rows that share one xor value
  const uint32_t mask = width / 16u - 1u;
  const uint32_t chunk = (byte / 16u) ^ ((row / rows_per_pattern) & mask);
  return row * width + chunk * 16u + byte % 16u;
}

static_assert(matrix_desc_bits(0x400, Swizzle::b128) == 0x4000004000010040ull);
static_assert(swizzled_offset(1, 0, Swizzle::b128) == 128 + 16);
static_assert(swizzled_offset(9, 0, Swizzle::b128) == 9 * 128 + 16);
static_assert(swizzled_offset(2, 0, Swizzle::b64) == 128 + 16 &&
              swizzled_offset(1, 0, Swizzle::b64) == 64);
static_assert(swizzled_offset(4, 16, Swizzle::b32) == 128 &&
              swizzled_offset(3, 16, Swizzle::b32) == 112);

}  // namespace vca::ptx
