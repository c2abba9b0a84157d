// SPDX-License-Identifier: Apache-2.0
// Structs of the C ABI that may come from a caller compiled against another version of the header.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "core/status.hpp"

namespace vca::core {

// Far above any version's; a struct_size that nobody set must not lead far beyond the struct.
inline constexpr size_t kMaxStructBytes = 1u << 12;

// The caller's input struct as this version knows it. Shorter than ours: the missing tail means
// "default" (zero). Longer: allowed when what we do not know is zero. `oldest` is the size of the
// first published version.
template <class T>
T read_struct(const T* from, size_t oldest, const char* name) {
  if (from == nullptr) {
    invalid(std::string(name) + " is NULL", "NULL", "a pointer to the struct", "");
  }
  size_t size = 0;
  std::memcpy(&size, from, sizeof(size));  // struct_size comes first in every struct
  if (size < oldest || size > kMaxStructBytes) {
    invalid(std::string(name) + ".struct_size is not a size of this struct", std::to_string(size),
            std::to_string(oldest) + " .. " + std::to_string(kMaxStructBytes),
            std::string("set it to sizeof(") + name + ")");
  }
  T to{};
  std::memcpy(&to, from, size < sizeof(T) ? size : sizeof(T));
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      invalid(std::string(name) + " uses a field that this library does not know",
              "a non-zero byte at offset " + std::to_string(i),
              "zero beyond byte " + std::to_string(sizeof(T)),
              "the program was built for a newer library: update it");
    }
  }
  to.struct_size = sizeof(T);
  return to;
}

}  // namespace vca::core
