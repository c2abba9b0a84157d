// SPDX-License-Identifier: Apache-2.0
// What the bug lines on a device have in common. The numbers are those of the reports on a GPU, and
// small ones on the emulated device.
#pragma once

#include <gtest/gtest.h>

#include "device/capi_compare.hpp"

namespace vca::tests {

inline int64_t size(int64_t on_a_gpu, int64_t small) { return small_problems() ? small : on_a_gpu; }

inline void run(const Problem& p) {
  ASSERT_EQ(status_text(p.run(nullptr)), "");
  wait_for_device();
}

// Runs and compares with the specification: bits of O, LSE, guards, inputs.
inline void run_and_compare(const Problem& p) {
  run(p);
  const std::vector<uint8_t> o = p.o->download(), lse = p.lse->download();
  EXPECT_EQ(Comparison(p, o, lse).run(), "");
}

// O of the last call.
class Output {
 public:
  explicit Output(const Problem& p) : p_(p), bytes_(p.o->download()) {
    view_ = p.host.o;
    view_.data = bytes_.data() + p.c.o_offset * element_bytes(p.c.o_dtype);
    lse_.resize(p.lse_count());
    std::memcpy(lse_.data(), p.lse->download().data(), lse_.size() * 4);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  float at(int64_t b, int64_t h, int64_t s, int64_t d) const {
    return Problem::value_at(view_, view_.data, b, h, s, d);
  }
  float lse(int64_t b, int64_t h, int64_t s) const {
    return lse_[static_cast<size_t>((b * p_.c.h_q + h) * p_.c.s_q + s)];
  }
  // Rows in which not every element is exactly x.
  int64_t rows_other_than(float x) const {
    const auto e = static_cast<size_t>(element_bytes(p_.c.o_dtype));
    const uint32_t bits = encode(p_.c.o_dtype, x);
    std::vector<uint8_t> want(static_cast<size_t>(p_.c.d) * e);
    for (size_t i = 0; i < want.size(); i += e) std::memcpy(&want[i], &bits, e);
    int64_t n = 0;
    for (int64_t b = 0; b < p_.c.b; ++b)
      for (int64_t h = 0; h < p_.c.h_q; ++h)
        for (int64_t s = 0; s < p_.c.s_q; ++s) {
          const int64_t at = b * view_.stride[0] + h * view_.stride[1] + s * view_.stride[2];
          const auto* row = static_cast<const uint8_t*>(view_.data) + static_cast<size_t>(at) * e;
          n += std::memcmp(row, want.data(), want.size()) == 0 ? 0 : 1;
        }
    return n;
  }

 private:
  const Problem& p_;
  std::vector<uint8_t> bytes_;
  std::vector<float> lse_;
  vca_tensor view_{};
};

inline float one(int64_t, int64_t, int64_t, int64_t) { return 1.0f; }
inline float zero(int64_t, int64_t, int64_t, int64_t) { return 0.0f; }

// Counter-based normal numbers by place.
inline float normal_at(uint64_t seed, int64_t b, int64_t h, int64_t s, int64_t d) {
  return Random(seed + static_cast<uint64_t>(((b * 1031 + h) * 1000003 + s) * 131 + d)).normal();
}

}  // namespace vca::tests
