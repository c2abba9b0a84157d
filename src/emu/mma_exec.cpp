// SPDX-License-Identifier: Apache-2.0
#include "emu/mma_exec.hpp"

#include <cstring>

#include "spec/codes.hpp"
#include "spec/mma_model.hpp"

namespace vca::emu {
namespace {

float decode_tf32(const uint8_t* p) {
  uint32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return spec::float_from_bits(bits & 0xFFFFE000u);
}

void execute_s8(uint32_t n, const uint8_t* a, const uint8_t* b, uint32_t* d) {
  int32_t bt[kMmaKBytes * kMmaMaxN];
  for (uint32_t column = 0; column < n; ++column) {
    for (uint32_t i = 0; i < kMmaKBytes; ++i) {
      bt[i * n + column] = static_cast<int8_t>(b[column * kMmaKBytes + i]);
    }
  }
  for (uint32_t row = 0; row < kMmaRows; ++row) {
    uint32_t* out = d + row * n;
    for (uint32_t i = 0; i < kMmaKBytes; ++i) {
      const int32_t left = static_cast<int8_t>(a[row * kMmaKBytes + i]);
      for (uint32_t column = 0; column < n; ++column) {
        out[column] += static_cast<uint32_t>(left * bt[i * n + column]);  // wraps, as int32 does
      }
    }
  }
}

void execute_float(MmaType type, uint32_t n, const uint8_t* a, const uint8_t* b, uint32_t* d) {
  const bool is_tf32 = type == MmaType::tf32;
  const uint32_t k = is_tf32 ? kMmaKBytes / 4 : kMmaKBytes;
  const uint32_t width = kMmaKBytes / k;
  const auto decode = [is_tf32](const uint8_t* p) {
    return is_tf32 ? decode_tf32(p) : spec::e4m3_decode(*p);
  };
  const spec::MmaModel model =
      spec::mma_model(spec::Target::sm90, is_tf32 ? spec::Instr::mean_tf32 : spec::Instr::pv_e4m3);
  float bt[kMmaKBytes * kMmaMaxN];
  for (uint32_t column = 0; column < n; ++column) {
    for (uint32_t i = 0; i < k; ++i) {
      bt[i * n + column] = decode(b + column * kMmaKBytes + i * width);
    }
  }
  float left[kMmaKBytes];
  float out[kMmaMaxN];
  for (uint32_t row = 0; row < kMmaRows; ++row) {
    for (uint32_t i = 0; i < k; ++i) left[i] = decode(a + row * kMmaKBytes + i * width);
    std::memcpy(out, d + row * n, n * sizeof(float));
    spec::mma_accumulate_f32(model, left, bt, n, k, n, out);
    std::memcpy(d + row * n, out, n * sizeof(float));
  }
}

}  // namespace

const char* to_string(MmaType type) {
  switch (type) {
    case MmaType::s8:
      return "s8";
    case MmaType::e4m3:
      return "e4m3";
    case MmaType::tf32:
      return "tf32";
  }
  return "invalid";
}

void mma_execute(MmaType type, uint32_t n, const uint8_t* a, const uint8_t* b, uint32_t* d) {
  if (type == MmaType::s8) {
    execute_s8(n, a, b, d);
  } else {
    execute_float(type, n, a, b, d);
  }
}

}  // namespace vca::emu
