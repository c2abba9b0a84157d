// SPDX-License-Identifier: Apache-2.0
#include "spec/tiles.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

namespace vca::spec {
namespace {

std::vector<uint8_t> pattern(int64_t bytes, uint32_t seed) {
  std::vector<uint8_t> out(static_cast<size_t>(bytes));
  uint32_t state = seed;
  for (uint8_t& byte : out) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return out;
}

// The swizzle as the PTX ISA states it, on absolute address bits: SW128 xors bits 4–6 with 7–9,
// SW64 bits 4–5 with 7–8, SW32 bit 4 with bit 7.
int64_t hardware_offset(int64_t row, int64_t byte, int64_t row_bytes) {
  const int64_t linear = row * row_bytes + byte;
  const int64_t mask = row_bytes / 16 - 1;
  return linear ^ (((linear >> 7) & mask) << 4);
}

TEST(Offset, IsABijectionAndTheHardwareSwizzle) {
  for (int64_t row_bytes : {32, 64, 128}) {
    std::set<int64_t> seen;
    for (int64_t row = 0; row < 136; ++row) {
      for (int64_t byte = 0; byte < row_bytes; ++byte) {
        const int64_t offset = t128_offset(row, byte, row_bytes);
        ASSERT_EQ(offset, hardware_offset(row, byte, row_bytes));
        ASSERT_GE(offset, 0);
        ASSERT_LT(offset, 136 * row_bytes);
        ASSERT_TRUE(seen.insert(offset).second);
      }
    }
  }
}

// Worked by hand from the layout in tiles.hpp.
TEST(Offset, HandChecked) {
  EXPECT_EQ(t128_offset(5, 0, 128), 5 * 128 + 5 * 16);
  EXPECT_EQ(t128_offset(7, 112, 128), 7 * 128);
  EXPECT_EQ(t128_offset(8, 112, 128), 8 * 128 + 112);
  EXPECT_EQ(t128_offset(130, 20, 128), 130 * 128 + 3 * 16 + 4);
  EXPECT_EQ(t128_offset(6, 32, 64), 6 * 64 + 16);
  EXPECT_EQ(t128_offset(9, 1, 64), 9 * 64 + 1);
  EXPECT_EQ(t128_offset(5, 17, 32), 5 * 32 + 1);
  EXPECT_EQ(t128_offset(127, 31, 32), 127 * 32 + 15);
}

TEST(KeyOrder, InverseBijectionAndFormula) {
  std::set<int> seen;
  for (int g = 0; g < 8; ++g) {
    for (int q = 0; q < 4; ++q) {
      for (int x = 0; x < 2; ++x) {
        for (int e = 0; e < 2; ++e) {
          const int column = 16 * g + 4 * q + 2 * x + e;
          const int key = 16 * g + 8 * x + 2 * q + e;
          EXPECT_EQ(v_key_of_column(column), key);
          EXPECT_EQ(v_column_of_key(key), column);
          seen.insert(key);
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 128u);
}

// Why the order is what it is: a thread of quad lane q owns the accumulator columns 8b + 2q + e of
// S, and as 8-bit A operand of k32 step s it must supply columns 32s + 4q + i (first register) and
// 32s + 16 + 4q + i (second), i = 0 … 3. Both must be the same keys.
TEST(KeyOrder, AccumulatorRegistersAreTheOperand) {
  for (int q = 0; q < 4; ++q) {
    for (int s = 0; s < 4; ++s) {
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 4; ++i) {
          const int column = 32 * s + 16 * half + 4 * q + i;
          const int n8_block = 4 * s + 2 * half + i / 2;
          const int accumulator_key = 8 * n8_block + 2 * q + i % 2;
          EXPECT_EQ(v_key_of_column(column), accumulator_key);
        }
      }
    }
  }
}

TEST(QkTile, RoundTripAndPlacement) {
  for (int d : {64, 128}) {
    const std::vector<uint8_t> codes = pattern(128 * d, 7u + static_cast<uint32_t>(d));
    std::vector<uint8_t> tile(static_cast<size_t>(t128_qk_tile_bytes(d)), 0xAA);
    t128_store_qk(codes.data(), d, tile.data());
    for (int row = 0; row < 128; ++row) {
      for (int c = 0; c < d; ++c) {
        ASSERT_EQ(tile[static_cast<size_t>(hardware_offset(row, c, d))],
                  codes[static_cast<size_t>(row * d + c)]);
      }
    }
    std::vector<uint8_t> back(codes.size());
    t128_load_qk(tile.data(), d, back.data());
    EXPECT_EQ(back, codes);
  }
}

TEST(VTile, RoundTripIndicatorsAndInvalidKeys) {
  for (int d : {64, 128}) {
    for (uint8_t indicator_code : {kIndicatorE4m3, kIndicatorInteger}) {
      for (int indicator_row = 0; indicator_row < 8; ++indicator_row) {
        std::vector<uint8_t> codes = pattern(128 * d, 99u);
        std::vector<uint8_t> valid(128, 1);
        for (int n : {3, 64, 127}) valid[static_cast<size_t>(n)] = 0;
        std::vector<uint8_t> tile(static_cast<size_t>(t128_v_tile_bytes(d)), 0xAA);
        t128_store_v(codes.data(), valid.data(), d, indicator_row, tile.data(), indicator_code);

        // Straight from the definition: row = channel, column p = key order, swizzled.
        for (int p = 0; p < 128; ++p) {
          const int key = v_key_of_column(p);
          const bool is_valid = valid[static_cast<size_t>(key)] != 0;
          for (int c = 0; c < d + 8; ++c) {
            uint8_t expected = 0;
            if (is_valid && c < d) expected = codes[static_cast<size_t>(key * d + c)];
            if (is_valid && c == d + indicator_row) expected = indicator_code;
            ASSERT_EQ(tile[static_cast<size_t>(hardware_offset(c, p, 128))], expected);
          }
        }

        std::vector<uint8_t> back(codes.size());
        std::vector<uint8_t> indicators(128 * 8);
        t128_load_v(tile.data(), d, back.data(), indicators.data());
        for (int n = 0; n < 128; ++n) {
          const bool is_valid = valid[static_cast<size_t>(n)] != 0;
          if (!is_valid) std::memset(codes.data() + n * d, 0, static_cast<size_t>(d));
          for (int i = 0; i < 8; ++i) {
            ASSERT_EQ(indicators[static_cast<size_t>(n * 8 + i)],
                      is_valid && i == indicator_row ? indicator_code : 0);
          }
        }
        EXPECT_EQ(back, codes);
      }
    }
  }
}

TEST(MuTile, OrderMissingBlocksAndRoundTrip) {
  for (int d : {64, 128}) {
    for (int blocks : {0, 1, 5, 8}) {
      std::vector<float> means(static_cast<size_t>(8 * d));
      for (size_t i = 0; i < means.size(); ++i) means[i] = static_cast<float>(i) - 100.0f;
      std::vector<uint8_t> tile(static_cast<size_t>(t128_mu_tile_bytes(d)), 0xAA);
      t128_store_mu(means.data(), blocks, d, tile.data());
      const int block_of_column[] = {0, 2, 4, 6, 1, 3, 5, 7};
      for (int c = 0; c < d; ++c) {
        for (int column = 0; column < 8; ++column) {
          float value = 0;
          std::memcpy(&value, tile.data() + hardware_offset(c, 4 * column, 32), 4);
          const int block = block_of_column[column];
          ASSERT_EQ(value, block < blocks ? means[static_cast<size_t>(block * d + c)] : 0.0f);
        }
      }
      std::vector<float> back(means.size());
      t128_load_mu(tile.data(), d, back.data());
      for (size_t i = static_cast<size_t>(blocks * d); i < means.size(); ++i) means[i] = 0.0f;
      EXPECT_EQ(back, means);
    }
  }
}

TEST(TileDeathTest, WrongSizesAreRefusedAndSaySo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  uint8_t byte = 0;
  EXPECT_DEATH(t128_store_qk(&byte, 96, &byte), "padded head_dim: got 96, allowed 64 or 128");
  EXPECT_DEATH(t128_store_v(&byte, &byte, 64, 8, &byte), "indicator_row: got 8, allowed 0 to 7");
}

}  // namespace
}  // namespace vca::spec
