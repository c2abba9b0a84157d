// SPDX-License-Identifier: Apache-2.0
// The fragment-major tiles of sm_120, read as the instruction reads them: registers by lane, scales
// by selector. QK and PV of one tile come out as plain dot products, and the scores a lane holds
// are the A operand of PV without an exchange.
#include "spec/tiles_sm120.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "spec/fp4.hpp"

namespace vca::spec {
namespace {

struct Operand {  // rows of NVFP4
  int rows, d;
  std::vector<uint8_t> codes, micro;
  Operand(int n, int dim, uint32_t seed)
      : rows(n),
        d(dim),
        codes(static_cast<size_t>(n * dim / 2)),
        micro(static_cast<size_t>(n * dim / 16)) {
    std::mt19937 g(seed);
    for (uint8_t& c : codes) c = static_cast<uint8_t>(g());
    for (uint8_t& m : micro) m = static_cast<uint8_t>(0x20 + g() % 0x30);
  }
  float element(int row, int c) const {
    return e2m1_decode(fp4_get(codes.data() + row * d / 2, d, c));
  }
  float value(int row, int c) const {
    return element(row, c) * ue4m3_decode(micro[static_cast<size_t>(row * d / 16 + c / 16)]);
  }
};

float nibble(const uint8_t* reg, int i) { return e2m1_decode((reg[i / 2] >> (i % 2 * 4)) & 15); }

// d = C + A B of one m16n8k64, by the fragment maps of the PTX ISA (tile_sm120.hpp's table). a, b:
// registers of a lane, 4 and 2 words; sfa, sfb: the scale word of a lane.
using Words = std::vector<std::vector<uint8_t>>;
void omma(const Words& a, const Words& b, const Words& sfa, int tid_a, const Words& sfb, int tid_b,
          double (&c)[32][4]) {
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      const int g_a = row % 8, g_b = column;
      for (int k = 0; k < 64; ++k) {
        const int t = k % 32 / 8;
        const float x = nibble(
            a[static_cast<size_t>(g_a * 4 + t)].data() + 4 * (row / 8 + 2 * (k / 32)), k % 8);
        const float y = nibble(b[static_cast<size_t>(g_b * 4 + t)].data() + 4 * (k / 32), k % 8);
        const uint8_t sa =
            sfa[static_cast<size_t>(g_a * 4 + 2 * tid_a + row / 8)][static_cast<size_t>(k / 16)];
        const uint8_t sb = sfb[static_cast<size_t>(g_b * 4 + tid_b)][static_cast<size_t>(k / 16)];
        c[lane][i] += static_cast<double>(x) * y * ue4m3_decode(sa) * ue4m3_decode(sb);
      }
    }
}

Words lanes(const uint8_t* base, int stride, int bytes) {
  Words out;
  for (int lane = 0; lane < 32; ++lane)
    out.emplace_back(base + lane * stride, base + lane * stride + bytes);
  return out;
}

class Sm120Tiles : public testing::TestWithParam<int> {};

TEST_P(Sm120Tiles, ScoresAreDotProductsInTheOrderThatPvReads) {
  const int d = GetParam(), steps = d / 64;
  const Operand q(16, d, 1), k(128, d, 2);
  std::vector<uint8_t> q_tile(static_cast<size_t>(sm120_q_tile_bytes(d))), q_scale(128);
  std::vector<uint8_t> k_tile(static_cast<size_t>(sm120_k_tile_bytes(d)));
  std::vector<uint8_t> k_scale(static_cast<size_t>(sm120_k_scale_bytes(d)));
  sm120_store_q(q.codes.data(), q.micro.data(), d, q_tile.data(), q_scale.data());
  sm120_store_k(k.codes.data(), k.micro.data(), d, k_tile.data(), k_scale.data());
  for (int n8 = 0; n8 < 16; ++n8) {
    double c[32][4] = {};
    for (int k64 = 0; k64 < steps; ++k64)
      omma(lanes(q_tile.data() + k64 * 512, 16, 16),
           lanes(k_tile.data() + n8 * 32 * 8 * steps + k64 * 8, 8 * steps, 8),
           lanes(q_scale.data(), 4, 4), k64, lanes(k_scale.data() + k64 * 512 + n8 / 4 * 4, 16, 4),
           n8 % 4, c);
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), t = lane % 4;
        const int key = n8 / 4 * 32 + 8 * t + 2 * (n8 % 4) + i % 2;  // the lane's keys, ascending
        double want = 0;
        for (int x = 0; x < d; ++x) want += static_cast<double>(q.value(row, x)) * k.value(key, x);
        ASSERT_EQ(c[lane][i], want) << "n8 " << n8 << " lane " << lane << " register " << i;
      }
  }
}

TEST_P(Sm120Tiles, ProductsWithTheLanesOwnKeysAreDotProducts) {
  const int d = GetParam(), parts = d / 32;
  const Operand v(128, d, 3), p(16, 128, 4);  // P: 16 rows of 128 keys, scales of 16 keys
  std::vector<uint8_t> v_micro(static_cast<size_t>(8 * d));
  std::mt19937 g(5);
  for (uint8_t& m : v_micro) m = static_cast<uint8_t>(0x20 + g() % 0x30);
  std::vector<uint8_t> tile(static_cast<size_t>(sm120_v_tile_bytes(d)));
  std::vector<uint8_t> scale(static_cast<size_t>(sm120_v_scale_bytes(d)));
  sm120_store_v(v.codes.data(), v_micro.data(), d, tile.data(), scale.data());
  for (int n8 = 0; n8 < d / 8; ++n8) {
    double c[32][4] = {};
    for (int k64 = 0; k64 < 2; ++k64) {
      Words a(32, std::vector<uint8_t>(16)), sfa(32, std::vector<uint8_t>(4));
      for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4, t = lane % 4;
        // What the lane holds after QK: keys 8t .. 8t+7 of the 32-key chunks 2 k64 and 2 k64 + 1.
        for (int reg = 0; reg < 4; ++reg)
          for (int i = 0; i < 8; ++i) {
            const int key = (2 * k64 + reg / 2) * 32 + 8 * t + i;
            const uint8_t code = fp4_get(p.codes.data() + (row + 8 * (reg % 2)) * 64, 128, key);
            a[static_cast<size_t>(lane)][static_cast<size_t>(reg * 4 + i / 2)] |=
                static_cast<uint8_t>(code << (i % 2 * 4));
          }
        if (t < 2)
          std::memcpy(sfa[static_cast<size_t>(lane)].data(),
                      p.micro.data() + (row + 8 * t) * 8 + k64 * 4, 4);
      }
      omma(a, lanes(tile.data() + n8 * 512 + k64 * 8, 16, 8), sfa, 0,
           lanes(scale.data() + (k64 * 32 * parts + n8 / 4) * 4, parts * 4, 4), n8 % 4, c);
    }
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), channel = n8 * 8 + 2 * (lane % 4) + i % 2;
        double want = 0;
        for (int n = 0; n < 128; ++n)
          want += static_cast<double>(p.value(row, n)) * v.element(n, channel) *
                  ue4m3_decode(v_micro[static_cast<size_t>(n / 16 * d + channel)]);
        ASSERT_EQ(c[lane][i], want) << "n8 " << n8 << " lane " << lane << " register " << i;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, Sm120Tiles, testing::Values(64, 128));

}  // namespace
}  // namespace vca::spec
