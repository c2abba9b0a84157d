// SPDX-License-Identifier: Apache-2.0
#include "spec/fp4.hpp"

namespace vca::spec {

const std::array<float, 128>& ue4m3_log_table() {
  // The double's logarithm is off by less than an ulp of a double, and no 8 log2 of a code lies
  // that near to the middle of two floats (a test checks every code against long double).
  static const std::array<float, 128> table = [] {
    std::array<float, 128> t{};
    for (uint8_t code = 0; code < 127; ++code) {
      const double value = static_cast<double>(ue4m3_decode(code == 0 ? uint8_t{1} : code));
      t[code] = static_cast<float>(8.0 * std::log2(value));
    }
    t[127] = t[126];
    return t;
  }();
  return table;
}

}  // namespace vca::spec
