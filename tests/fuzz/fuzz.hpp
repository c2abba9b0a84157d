// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share: libFuzzer's entry point, a reader of its bytes, and the seeds that
// the bounded run of the tests starts from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

// One input. Anything but a plain return (a crash, a sanitizer report, an abort) is a finding.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace vca::fuzz {

// Inputs that reach deep; the bounded run mutates them, and --write-seeds makes files of them.
std::vector<std::vector<uint8_t>> seeds();

// Takes values off the front of an input; zeros when it has ended.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), left_(size) {}
  template <class T>
  T take() {
    T value{};
    const size_t n = left_ < sizeof(T) ? left_ : sizeof(T);
    if (n > 0) std::memcpy(&value, at_, n);
    at_ += n;
    left_ -= n;
    return value;
  }
  uint8_t byte() { return take<uint8_t>(); }
  // One of 0 .. n - 1.
  int pick(int n) { return byte() % n; }
  const uint8_t* data() const { return at_; }
  size_t size() const { return left_; }

 private:
  const uint8_t* at_;
  size_t left_;
};

}  // namespace vca::fuzz
