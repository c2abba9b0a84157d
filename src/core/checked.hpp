// SPDX-License-Identifier: Apache-2.0
// 64-bit arithmetic on numbers that a caller chose: an overflow becomes a refusal, never a wrong
// size.
#pragma once

#include <cstdint>

#include "core/status.hpp"

namespace vca::core {

inline int64_t checked_mul(int64_t a, int64_t b, const char* what) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) fail_overflow(what, a, '*', b);
  return result;
}

inline int64_t checked_add(int64_t a, int64_t b, const char* what) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) fail_overflow(what, a, '+', b);
  return result;
}

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace vca::core
