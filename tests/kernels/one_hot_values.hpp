// SPDX-License-Identifier: Apache-2.0
// Codes of P out of an attention kernel as it ships, which writes none: with one block of keys and
// V[n][c] = 1 where n = first_key + c, O[row][c] is the value of one code over l. Codes are 6 %
// apart or more, so the nearest one to O·l is the code.
#pragma once

#include <cstdio>
#include <string>

#include "kernels/packed_problem.hpp"

namespace vca::tests {

// Puts such values in place of the problem's own: no block means, channel scale 1. Every
// sub-problem has one block of keys, and head_dim is 64 or 128.
inline void set_one_hot_values(PackedProblem& p, int first_key) {
  const int d = p.problem.d_pad;
  std::fill(p.s_v.begin(), p.s_v.end(), 1.0f);
  std::fill_n(p.mu_tiles.data, p.mu_tiles.size, uint8_t{0});
  std::vector<uint8_t> codes(static_cast<size_t>(spec::kBlock * d));
  for (int c = 0; c < d && first_key + c < spec::kBlock; ++c)
    codes[static_cast<size_t>((first_key + c) * d + c)] = spec::kIndicatorE4m3;
  const size_t tile_bytes = static_cast<size_t>(spec::t128_v_tile_bytes(d));
  for (size_t i = 0; i < p.kv.size(); ++i) {
    uint8_t valid[spec::kBlock];
    for (int n = 0; n < spec::kBlock; ++n) valid[n] = p.kv[i]->view.order[n] >= 0;
    spec::t128_store_v(codes.data(), valid, d, 0, p.v_tiles.data + i * tile_bytes);
  }
}

// The codes in O (FP32, [b][h][s][d]) against the specification's. Returns the first difference, or
// an empty string.
inline std::string compare_codes(const PackedProblem& packed, const float* o, int first_key,
                                 int64_t* compared) {
  const spec::Problem& p = packed.problem;
  std::vector<uint8_t> codes(static_cast<size_t>(p.s_q * spec::kBlock));
  std::vector<float> l(static_cast<size_t>(p.s_q));
  for (size_t i = 0; i < p.subs.size(); ++i)
    for (int64_t h = 0; h < p.h_q; ++h) {
      const auto& kv =
          packed.kv[i * static_cast<size_t>(p.h_kv) + static_cast<size_t>(p.kv_head(h))]->view;
      const auto& q = packed.q[i * static_cast<size_t>(p.h_q) + static_cast<size_t>(h)]->view;
      spec::RowOutputs out;
      out.codes = codes.data();
      out.l = l.data();
      spec::attention_rows(p, kv, q, spec::Target::sm90, 0, p.s_q, nullptr, out);
      for (int64_t row = 0; row < p.s_q; ++row)
        for (int c = 0; c < p.d && first_key + c < kv.n_valid; ++c) {
          const size_t at =
              static_cast<size_t>(((p.subs[i].batch * p.h_q + h) * p.s_q + row) * p.d + c);
          const uint8_t got =
              spec::e4m3_encode(static_cast<float>(double{o[at]} * l[static_cast<size_t>(row)]));
          const uint8_t want = codes[static_cast<size_t>(row * spec::kBlock + first_key + c)];
          ++*compared;
          if (got == want) continue;
          char text[120];
          std::snprintf(text, sizeof text, "sub %zu head %d row %d key %d: code %d, not %d", i,
                        static_cast<int>(h), static_cast<int>(row), first_key + c, got, want);
          return text;
        }
    }
  return "";
}

}  // namespace vca::tests
