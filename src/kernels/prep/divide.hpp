// SPDX-License-Identifier: Apache-2.0
// Division of small non-negative integers by a number that the host knows: one wide multiplication
// and a shift instead of the thirty instructions of a run-time division.
#pragma once

#include <bit>
#include <cstdint>

#include "ptx/types.hpp"

namespace vca::kernels::prep {

// n / divisor for 0 <= n < 2^31, 1 <= divisor < 2^31.
//   multiplier = ceil(2^(31 + l) / divisor), l = ceil(log2 divisor), so divisor <= 2^l and the
//   multiplier stays below 2^32. Its excess e = multiplier * divisor - 2^(31 + l) < divisor <= 2^l
//   shifts the quotient by n * e / (divisor * 2^(31 + l)) < 1 / divisor: never past an integer.
struct Divider {
  uint32_t divisor = 1, multiplier = 1u << 31, shift = 31;
  VCA_DEVICE uint32_t divide(uint32_t n) const {
    return static_cast<uint32_t>(uint64_t{n} * multiplier >> shift);
  }
};
inline Divider make_divider(int64_t divisor) {
  Divider out;
  out.divisor = static_cast<uint32_t>(divisor < 1 ? 1 : divisor);
  out.shift = 31 + static_cast<uint32_t>(std::bit_width(out.divisor - 1));
  out.multiplier =
      static_cast<uint32_t>(((uint64_t{1} << out.shift) + out.divisor - 1) / out.divisor);
  return out;
}

}  // namespace vca::kernels::prep
