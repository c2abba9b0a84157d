// SPDX-License-Identifier: Apache-2.0
// A prepared workspace against the specification, byte for byte.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/prep_problem.hpp"

namespace vca::tests {

// Compares a prepared workspace (host memory) with the specification, byte for byte. Returns the
// first difference, or an empty string. `energy_removed` is null where it was not asked for.
class PrepComparison {
 public:
  PrepComparison(const PrepProblem& host, const kernels::AttentionParams& got,
                 const float* k_offset, const float* energy_removed)
      : host_(host), p_(host.problem), got_(got), k_offset_(k_offset), energy_(energy_removed) {}

  std::string run() {
    std::string first;
    const auto n_subs = static_cast<int64_t>(p_.subs.size());
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t i = 0; i < n_subs; ++i)
      for (int64_t h = 0; h < p_.h_kv; ++h) {
        if (host_.shape.nonfinite && h == 0) continue;
        const std::string problem = compare_head(static_cast<size_t>(i), h);
        if (problem.empty()) continue;
#pragma omp critical
        if (first.empty()) first = problem;
      }
    return first;
  }

 private:
  static std::string difference(const char* what, size_t sub, int64_t head, int64_t item,
                                const void* got, const void* want, size_t n) {
    if (std::memcmp(got, want, n) == 0) return {};
    size_t at = 0, count = 0;
    for (size_t i = n; i-- > 0;)
      if (static_cast<const uint8_t*>(got)[i] != static_cast<const uint8_t*>(want)[i]) {
        at = i;
        ++count;
      }
    char text[240];
    std::snprintf(text, sizeof text,
                  "%s of sub %zu head %lld item %lld: %zu of %zu bytes differ, first at %zu: %02x "
                  "instead of %02x",
                  what, sub, static_cast<long long>(head), static_cast<long long>(item), count, n,
                  at, static_cast<const uint8_t*>(got)[at], static_cast<const uint8_t*>(want)[at]);
    return text;
  }

  // One kv head and the query heads that read it.
  std::string compare_head(size_t i, int64_t h) {
    const spec::SubProblem& sub = p_.subs[i];
    const kernels::SubInfo& info = got_.subs[i];
    if (info.n_blocks != sub.n_blocks()) return "n_blocks of sub " + std::to_string(i);
    const int d = p_.d_pad;
    const size_t unit = i * static_cast<size_t>(p_.h_kv) + static_cast<size_t>(h);
    spec::OwnedKv owned;
    spec::allocate(*p_.recipe, sub.n_valid(), sub.n_blocks(), d, owned);
    spec::prepare_kv(p_, sub, h, host_.order_by_segment[unit], owned.view);
    const spec::KvOperands& kv = owned.view;
    const auto d_bytes = static_cast<size_t>(d) * 4;
    std::string bad =
        difference("k_offset", i, h, 0, k_offset_ + unit * d_bytes / 4, kv.k_offset, d_bytes);
    if (bad.empty())
      bad = difference("s_v", i, h, 0, got_.s_v + unit * d_bytes / 4, kv.s_v, d_bytes);
    const float f = kv.stats->energy_removed;
    if (bad.empty() && energy_ != nullptr && !(std::isnan(f) && std::isnan(energy_[unit])))
      bad = difference("energy_removed", i, h, 0, energy_ + unit, &f, 4);
    for (int64_t j = 0; j < kv.n_blocks && bad.empty(); ++j) bad = compare_block(i, h, j, kv, info);
    for (int64_t g = h * (p_.h_q / p_.h_kv); g < (h + 1) * (p_.h_q / p_.h_kv) && bad.empty(); ++g)
      bad = compare_queries(i, g, kv, info);
    return bad;
  }

  std::string compare_block(size_t i, int64_t h, int64_t j, const spec::KvOperands& kv,
                            const kernels::SubInfo& info) {
    const int d = p_.d_pad;
    const int64_t at = info.kv_block_base + h * info.kv_block_stride + j;
    std::vector<uint8_t> tile(static_cast<size_t>(spec::t128_v_tile_bytes(d)));
    uint8_t valid[spec::kBlock];
    for (int64_t n = 0; n < spec::kBlock; ++n) valid[n] = kv.order[j * spec::kBlock + n] >= 0;
    const auto qk_bytes = static_cast<size_t>(spec::t128_qk_tile_bytes(d));
    spec::t128_store_qk(kv.k_codes + j * spec::kBlock * d, d, tile.data());
    std::string bad = difference("k_scale", i, h, j, got_.k_scale + at * 4, kv.k_scale + j * 4, 16);
    if (bad.empty())
      bad = difference("k tile", i, h, j, got_.k_tiles + static_cast<size_t>(at) * qk_bytes,
                       tile.data(), qk_bytes);
    spec::t128_store_v(kv.v_codes + j * spec::kBlock * d, valid, d, static_cast<int>(j % 8),
                       tile.data());
    if (bad.empty())
      bad = difference("v tile", i, h, j, got_.v_tiles + static_cast<size_t>(at) * tile.size(),
                       tile.data(), tile.size());
    if (bad.empty() && got_.block_valid[info.valid_base + j] != std::count(valid, valid + 128, 1))
      bad = "block_valid of block " + std::to_string(j);
    if (kv.mu == nullptr || j % 8 != 0 || !bad.empty()) return bad;
    const int64_t group = info.mu_group_base + h * info.mu_group_stride + j / 8;
    const auto mu_bytes = static_cast<size_t>(spec::t128_mu_tile_bytes(d));
    spec::t128_store_mu(kv.mu + j * d, static_cast<int>(std::min<int64_t>(8, kv.n_blocks - j)), d,
                        tile.data());
    return difference("mu tile", i, h, j / 8, got_.mu_tiles + static_cast<size_t>(group) * mu_bytes,
                      tile.data(), mu_bytes);
  }

  std::string compare_queries(size_t i, int64_t head, const spec::KvOperands& kv,
                              const kernels::SubInfo& info) {
    const int d = p_.d_pad;
    const spec::SubProblem& sub = p_.subs[i];
    spec::OwnedQ owned;
    spec::allocate(*p_.recipe, sub.q_len, d, host_.shape.lse, owned);
    spec::prepare_q(p_, sub, head, kv.k_offset, owned.view);
    const spec::QOperands& q = owned.view;
    const int32_t e = spec::overflow_exponent(p_, *q.max_q_scale, kv.stats->max_k_scale);
    std::string bad = difference("exponent", i, head, 0,
                                 got_.exponent + static_cast<int64_t>(i) * p_.h_q + head, &e, 4);
    const auto tile_bytes = static_cast<size_t>(spec::t128_qk_tile_bytes(d));
    std::vector<uint8_t> rows(tile_bytes), tile(tile_bytes);
    for (int64_t t = 0; t * 128 < q.rows && bad.empty(); ++t) {
      const int64_t at = info.q_tile_base + head * info.n_q_tiles + t;
      const int64_t n = std::min<int64_t>(128, q.rows - t * 128);
      std::fill(rows.begin(), rows.end(), uint8_t{0});
      std::copy_n(q.q_codes + t * 128 * d, n * d, rows.data());
      spec::t128_store_qk(rows.data(), d, tile.data());
      float unit[64];
      for (int64_t w = 0; w < 64; ++w) {
        const int64_t row = t * 128 + w / 8 * 16 + w % 8;
        unit[w] = row < q.rows ? spec::query_unit(p_, q, row, e) : 0.0f;
      }
      bad = difference("q tile", i, head, t, got_.q_tiles + static_cast<size_t>(at) * tile_bytes,
                       tile.data(), tile_bytes);
      if (bad.empty())
        bad = difference("q_unit", i, head, t, got_.q_unit + at * 64, unit, sizeof unit);
      if (bad.empty() && host_.shape.lse)
        bad = difference("qk_offset", i, head, t, got_.qk_offset + at * 128, q.qk_offset + t * 128,
                         static_cast<size_t>(n) * 4);
    }
    return bad;
  }

  const PrepProblem& host_;
  const spec::Problem& p_;
  const kernels::AttentionParams& got_;
  const float* k_offset_;
  const float* energy_;
};

}  // namespace vca::tests
