// SPDX-License-Identifier: Apache-2.0
#include "spec/tiles.hpp"

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace vca::spec {
namespace {

static_assert(std::endian::native == std::endian::little, "tiles hold little-endian FP32");

void require(bool ok, const char* function, const char* what, int got, const char* allowed) {
  if (ok) return;
  std::fprintf(stderr, "vcattn: %s: %s: got %d, allowed %s\n", function, what, got, allowed);
  std::abort();
}

void require_head_dim(const char* function, int d) {
  require(d == 64 || d == 128, function, "padded head_dim", d, "64 or 128");
}

// A row of the tile is contiguous in 16-byte chunks only.
constexpr int64_t kChunkBytes = 16;

}  // namespace

void t128_store_qk(const uint8_t* codes, int d, uint8_t* tile) {
  require_head_dim("t128_store_qk", d);
  for (int64_t row = 0; row < kTileRows; ++row) {
    for (int64_t byte = 0; byte < d; byte += kChunkBytes) {
      std::memcpy(tile + t128_offset(row, byte, d), codes + row * d + byte, kChunkBytes);
    }
  }
}

void t128_load_qk(const uint8_t* tile, int d, uint8_t* codes) {
  require_head_dim("t128_load_qk", d);
  for (int64_t row = 0; row < kTileRows; ++row) {
    for (int64_t byte = 0; byte < d; byte += kChunkBytes) {
      std::memcpy(codes + row * d + byte, tile + t128_offset(row, byte, d), kChunkBytes);
    }
  }
}

void t128_store_v(const uint8_t* codes, const uint8_t* valid, int d, int indicator_row,
                  uint8_t* tile, uint8_t indicator_code) {
  require_head_dim("t128_store_v", d);
  require(indicator_row >= 0 && indicator_row < kIndicatorRows, "t128_store_v", "indicator_row",
          indicator_row, "0 to 7");
  for (int p = 0; p < kTileRows; ++p) {
    const int key = v_key_of_column(p);
    const bool is_valid = valid[key] != 0;
    const uint8_t* row = codes + int64_t{key} * d;
    for (int channel = 0; channel < d; ++channel) {
      tile[t128_offset(channel, p, 128)] = is_valid ? row[channel] : uint8_t{0};
    }
    for (int i = 0; i < kIndicatorRows; ++i) {
      tile[t128_offset(d + i, p, 128)] =
          is_valid && i == indicator_row ? indicator_code : uint8_t{0};
    }
  }
}

void t128_load_v(const uint8_t* tile, int d, uint8_t* codes, uint8_t* indicators) {
  require_head_dim("t128_load_v", d);
  for (int p = 0; p < kTileRows; ++p) {
    const int64_t key = v_key_of_column(p);
    for (int channel = 0; channel < d; ++channel) {
      codes[key * d + channel] = tile[t128_offset(channel, p, 128)];
    }
    for (int i = 0; i < kIndicatorRows; ++i) {
      indicators[key * kIndicatorRows + i] = tile[t128_offset(d + i, p, 128)];
    }
  }
}

void t128_store_mu(const float* means, int blocks, int d, uint8_t* tile) {
  require_head_dim("t128_store_mu", d);
  require(blocks >= 0 && blocks <= kMuBlocks, "t128_store_mu", "blocks", blocks, "0 to 8");
  for (int column = 0; column < kMuBlocks; ++column) {
    const int block = kMuBlockOfColumn[column];
    for (int channel = 0; channel < d; ++channel) {
      const float value = block < blocks ? means[int64_t{block} * d + channel] : 0.0f;
      std::memcpy(tile + t128_offset(channel, column * 4, 32), &value, sizeof(value));
    }
  }
}

void t128_load_mu(const uint8_t* tile, int d, float* means) {
  require_head_dim("t128_load_mu", d);
  for (int column = 0; column < kMuBlocks; ++column) {
    float* row = means + int64_t{kMuBlockOfColumn[column]} * d;
    for (int channel = 0; channel < d; ++channel) {
      std::memcpy(row + channel, tile + t128_offset(channel, column * 4, 32), sizeof(float));
    }
  }
}

}  // namespace vca::spec
