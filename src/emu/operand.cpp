// SPDX-License-Identifier: Apache-2.0
#include "emu/operand.hpp"

#include "emu/text.hpp"

namespace vca::emu {
namespace {

constexpr uint32_t kChunkBytes = 16;
constexpr uint32_t kChunksPerRow = 2;
constexpr uint32_t kKStepBytes = kChunkBytes * kChunksPerRow;
// Rows of a core matrix; the swizzle pattern repeats after 8 rows of 128 bytes in any mode.
constexpr uint32_t kGroupRows = 8;

}  // namespace

DecodedDescriptor decode_descriptor(uint64_t bits) {
  DecodedDescriptor d;
  const auto field = [bits](int first, int count) {
    return static_cast<uint32_t>((bits >> first) & ((uint64_t{1} << count) - 1));
  };
  d.start = field(0, 14) * 16;
  d.leading_bytes = field(16, 14) * 16;
  d.stride_bytes = field(32, 14) * 16;
  d.base_offset = field(49, 3);
  constexpr uint32_t kWidth[] = {0, 128, 64, 32};
  d.swizzle_bytes = kWidth[field(62, 2)];
  return d;
}

std::string operand_chunks(uint64_t descriptor, uint32_t rows, std::vector<uint32_t>& chunks) {
  const DecodedDescriptor d = decode_descriptor(descriptor);
  chunks.clear();
  if (d.base_offset != 0) {
    return "matrix descriptor " + hex64(descriptor) + ": base offset " +
           std::to_string(d.base_offset) + ", allowed 0 (align tiles to the swizzle pattern)";
  }
  if (d.swizzle_bytes == 0) {
    // Core matrices of 8 rows x 16 bytes; `leading` steps along K, `stride` along rows.
    for (uint32_t row = 0; row < rows; ++row) {
      for (uint32_t chunk = 0; chunk < kChunksPerRow; ++chunk) {
        chunks.push_back(d.start + row / kGroupRows * d.stride_bytes +
                         row % kGroupRows * kChunkBytes + chunk * d.leading_bytes);
      }
    }
    return "";
  }
  const uint32_t pattern_bytes = kGroupRows * d.swizzle_bytes;
  const uint32_t column = d.start % d.swizzle_bytes;
  if ((d.start - column) % pattern_bytes != 0) {
    return "matrix descriptor " + hex64(descriptor) + ": row 0 at " + hex(d.start - column) +
           " is not aligned to the swizzle pattern of " + std::to_string(pattern_bytes) + " bytes";
  }
  if (column + kKStepBytes > d.swizzle_bytes) {
    return "matrix descriptor " + hex64(descriptor) + ": the k step at byte " +
           std::to_string(column) + " leaves the swizzled row of " +
           std::to_string(d.swizzle_bytes) + " bytes";
  }
  // Address bits 4 … are xored with bits 7 …: as many as the row has chunks.
  const uint32_t mask = d.swizzle_bytes / kChunkBytes - 1;
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t chunk = 0; chunk < kChunksPerRow; ++chunk) {
      const uint32_t linear = d.start + row / kGroupRows * d.stride_bytes +
                              row % kGroupRows * d.swizzle_bytes + chunk * kChunkBytes;
      chunks.push_back(linear ^ (((linear >> 7) & mask) << 4));
    }
  }
  return "";
}

}  // namespace vca::emu
