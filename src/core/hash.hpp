// SPDX-License-Identifier: Apache-2.0
// FNV-1a, 64 bit: identity of problems and integrity of blobs, not security. Numbers enter as
// little-endian bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vca::core {

class Hash {
 public:
  void add_bytes(const void* data, size_t n) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < n; ++i) value_ = (value_ ^ bytes[i]) * 0x100000001b3u;
  }
  void add(int64_t x) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; ++i)
      bytes[i] = static_cast<unsigned char>(static_cast<uint64_t>(x) >> (8 * i));
    add_bytes(bytes, sizeof(bytes));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace vca::core
