// SPDX-License-Identifier: Apache-2.0
#include "examples/tiny_video_dit/noise.hpp"

#include <cmath>
#include <numbers>

namespace tiny_video_dit {
namespace {

constexpr uint32_t kMul0 = 0xD2511F53U;
constexpr uint32_t kMul1 = 0xCD9E8D57U;
constexpr uint32_t kKeyStep0 = 0x9E3779B9U;
constexpr uint32_t kKeyStep1 = 0xBB67AE85U;
constexpr int kRounds = 10;

std::array<float, 4> normals_of_block(uint64_t seed, uint64_t block) {
  const std::array<uint32_t, 4> words = philox_words(seed, block);
  std::array<float, 4> normals;
  for (int pair = 0; pair < 2; ++pair) {
    const double a = (words[2 * pair] + 0.5) * 0x1p-32;
    const double b = (words[2 * pair + 1] + 0.5) * 0x1p-32;
    const double radius = std::sqrt(-2.0 * std::log(a));
    const double angle = 2.0 * std::numbers::pi * b;
    normals[2 * pair] = static_cast<float>(radius * std::cos(angle));
    normals[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return normals;
}

}  // namespace

std::array<uint32_t, 4> philox_words(uint64_t seed, uint64_t block) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0,
                               0};
  uint32_t k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMul0) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(kMul1) * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += kKeyStep0;
    k1 += kKeyStep1;
  }
  return c;
}

void fill_normals(uint64_t seed, uint64_t first, std::span<float> out) {
  const uint64_t end = first + out.size();
  for (uint64_t block = first / 4; block * 4 < end; ++block) {
    const std::array<float, 4> normals = normals_of_block(seed, block);
    for (uint64_t lane = 0; lane < 4; ++lane) {
      const uint64_t j = block * 4 + lane;
      if (j >= first && j < end) out[j - first] = normals[lane];
    }
  }
}

}  // namespace tiny_video_dit
