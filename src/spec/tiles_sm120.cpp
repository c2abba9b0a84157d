// SPDX-License-Identifier: Apache-2.0
#include "spec/tiles_sm120.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "spec/fp4.hpp"

namespace vca::spec {
namespace {

constexpr int kLanes = 32, kStep = 64;

void require_head_dim(const char* function, int d) {
  if (d == 64 || d == 128) return;
  std::fprintf(stderr, "vcattn: %s: padded head_dim: got %d, allowed 64 or 128\n", function, d);
  std::abort();
}

// Eight elements of a register, element(i) of k = first + i.
template <class Element>
void store_register(Element element, uint8_t* to) {
  for (int i = 0; i < 8; i += 2)
    to[i / 2] = static_cast<uint8_t>(element(i) | (element(i + 1) << 4));
}

// The key that the n-th column of a K tile holds.
int key_of(int n) { return n / 32 * 32 + sm120_key_of_column(n % 32 / 8, n % 8); }

}  // namespace

void sm120_store_q(const uint8_t* codes, const uint8_t* micro, int d, uint8_t* tile,
                   uint8_t* scales) {
  require_head_dim("sm120_store_q", d);
  std::memset(scales, 0, static_cast<size_t>(sm120_q_scale_bytes()));
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int k64 = 0; k64 < d / kStep; ++k64)
      for (int reg = 0; reg < 4; ++reg) {
        const int row = g + 8 * (reg & 1), first = k64 * kStep + 32 * (reg >> 1) + 8 * t;
        store_register([&](int i) { return fp4_get(codes + row * d / 2, d, first + i); },
                       tile + (k64 * kLanes + lane) * 16 + reg * 4);
      }
    if (t / 2 >= d / kStep) continue;
    const uint8_t* row = micro + (g + 8 * (t & 1)) * d / kMicroGroup;
    std::memcpy(scales + lane * 4, row + t / 2 * 4, 4);
  }
}

void sm120_store_k(const uint8_t* codes, const uint8_t* micro, int d, uint8_t* tile,
                   uint8_t* scales) {
  require_head_dim("sm120_store_k", d);
  const int steps = d / kStep;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int n8 = 0; n8 < kSm120Keys / 8; ++n8) {
      const int key = key_of(n8 * 8 + g);
      for (int reg = 0; reg < 2 * steps; ++reg)
        store_register([&](int i) { return fp4_get(codes + key * d / 2, d, reg * 32 + 8 * t + i); },
                       tile + (n8 * kLanes + lane) * 8 * steps + reg * 4);
    }
    // Selector tidB = n8 tile within the 32 keys, so lane (g, t) holds column 8t + g of them.
    for (int k64 = 0; k64 < steps; ++k64)
      for (int part = 0; part < 4; ++part)
        std::memcpy(scales + (k64 * kLanes + lane) * 16 + part * 4,
                    micro + key_of(part * 32 + 8 * t + g) * d / kMicroGroup + k64 * 4, 4);
  }
}

void sm120_store_v(const uint8_t* codes, const uint8_t* micro, int d, uint8_t* tile,
                   uint8_t* scales) {
  require_head_dim("sm120_store_v", d);
  const int parts = d / 32;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int n8 = 0; n8 < d / 8; ++n8)
      for (int reg = 0; reg < 4; ++reg)
        store_register(
            [&](int i) { return fp4_get(codes + (reg * 32 + 8 * t + i) * d / 2, d, n8 * 8 + g); },
            tile + (n8 * kLanes + lane) * 16 + reg * 4);
    for (int k64 = 0; k64 < 2; ++k64)
      for (int part = 0; part < parts; ++part)
        for (int i = 0; i < 4; ++i)
          scales[((k64 * kLanes + lane) * parts + part) * 4 + i] =
              micro[(k64 * 4 + i) * d + part * 32 + 8 * t + g];
  }
}

}  // namespace vca::spec
