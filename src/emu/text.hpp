// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace vca::emu {

inline std::string hex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%05x", value);
  return text;
}

inline std::string hex64(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace vca::emu
