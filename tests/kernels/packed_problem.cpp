// SPDX-License-Identifier: Apache-2.0
#include "kernels/packed_problem.hpp"

#include <algorithm>

namespace vca::tests {
namespace {

spec::TensorView view(const std::vector<float>& x, int64_t b, int64_t h, int64_t s, int64_t d) {
  spec::TensorView t;
  t.data = x.data();
  t.dtype = spec::DType::fp32;
  t.shape = {b, h, s, d};
  t.stride = {h * s * d, s * d, d, 1};
  return t;
}

void make_inputs(const ProblemShape& s, uint64_t seed, PackedProblem& out) {
  Random rng(seed);
  const double sigma = std::sqrt(s.logit_std);
  const auto fill = [&rng](std::vector<float>& x, int64_t n, double scale, double offset) {
    x.resize(static_cast<size_t>(n));
    for (float& value : x)
      value = spec::bf16_round(static_cast<float>(rng.normal() * scale + offset));
  };
  fill(out.q_values, s.b * s.h_q * s.s_q * s.d, sigma, 0.0);
  fill(out.k_values, s.b * s.h_kv * s.s_kv * s.d, sigma, 0.3);
  const double unit = 8.0 * 1.4426950408889634 / std::sqrt(static_cast<double>(s.d));
  const auto rows = static_cast<size_t>(s.b * s.h_q * s.s_q), width = static_cast<size_t>(s.d);
  for (size_t row = 0; s.ramp != 0.0 && row < rows; ++row) {
    const float rise = 0.75f + static_cast<float>(row % 65) / 128.0f;
    out.q_values[row * width] = row % 4 == 3 ? -rise : rise;
  }
  const auto keys = static_cast<size_t>(s.b * s.h_kv * s.s_kv);
  for (size_t key = 0; key < keys; ++key) {
    const size_t block = key % static_cast<size_t>(s.s_kv) / 128;
    if (s.ramp != 0.0)
      out.k_values[key * width] += static_cast<float>(s.ramp / unit * static_cast<double>(block));
    if (s.equal_keys) std::copy_n(out.k_values.begin(), width, &out.k_values[key * width]);
  }
  fill(out.v_values, s.b * s.h_kv * s.s_kv * s.d, 1.0, s.v_offset);
  spec::Problem& p = out.problem;
  p.set_tensors(view(out.q_values, s.b, s.h_q, s.s_q, s.d),
                view(out.k_values, s.b, s.h_kv, s.s_kv, s.d),
                view(out.v_values, s.b, s.h_kv, s.s_kv, s.d));
  for (int64_t b = 0; b < s.b; ++b) {
    spec::SubProblem sub;
    sub.batch = b;
    sub.q_len = s.s_q;
    const int64_t len = s.kv_lens.empty() ? s.s_kv : s.kv_lens[static_cast<size_t>(b)];
    const std::vector<int64_t> lengths =
        s.segments.empty() ? std::vector<int64_t>{len} : s.segments;
    int64_t token = 0;
    for (const int64_t n : lengths) {
      if (n == 0) continue;
      auto& segment = sub.segments.emplace_back();
      for (int64_t i = 0; i < n; ++i) segment.push_back(token++);
    }
    p.subs.push_back(sub);
  }
}

void pack_kv(const spec::Problem& p, const spec::KvOperands& kv, int64_t block0, int64_t group0,
             PackedProblem& out) {
  const int d = p.d_pad;
  for (int64_t j = 0; j < kv.n_blocks; ++j) {
    uint8_t valid[spec::kBlock];
    for (int n = 0; n < spec::kBlock; ++n) valid[n] = kv.order[j * spec::kBlock + n] >= 0;
    spec::t128_store_qk(kv.k_codes + j * spec::kBlock * d, d,
                        out.k_tiles.data + (block0 + j) * spec::t128_qk_tile_bytes(d));
    spec::t128_store_v(kv.v_codes + j * spec::kBlock * d, valid, d, static_cast<int>(j % 8),
                       out.v_tiles.data + (block0 + j) * spec::t128_v_tile_bytes(d));
    std::copy_n(kv.k_scale + j * 4, 4, out.k_scale.data() + (block0 + j) * 4);
  }
  for (int64_t g = 0; kv.mu != nullptr && g * 8 < kv.n_blocks; ++g)
    spec::t128_store_mu(kv.mu + g * 8 * d,
                        static_cast<int>(std::min<int64_t>(8, kv.n_blocks - g * 8)), d,
                        out.mu_tiles.data + (group0 + g) * spec::t128_mu_tile_bytes(d));
}

void pack_q(const spec::Problem& p, const spec::QOperands& q, int e, int64_t tile0,
            PackedProblem& out) {
  const int d = p.d_pad;
  std::vector<uint8_t> rows(static_cast<size_t>(128 * d));
  for (int64_t t = 0; t * 128 < q.rows; ++t) {
    std::fill(rows.begin(), rows.end(), uint8_t{0});
    const int64_t n = std::min<int64_t>(128, q.rows - t * 128);
    std::copy_n(q.q_codes + t * 128 * d, n * d, rows.data());
    spec::t128_store_qk(rows.data(), d,
                        out.q_tiles.data + (tile0 + t) * spec::t128_qk_tile_bytes(d));
    for (int64_t w = 0; w < 8; ++w)
      for (int64_t r = 0; r < 8; ++r) {
        const int64_t row = t * 128 + w * 16 + r;
        out.q_unit[static_cast<size_t>((tile0 + t) * 64 + w * 8 + r)] =
            row < q.rows ? spec::query_unit(p, q, row, e) : 0.0f;
      }
    if (q.qk_offset != nullptr)
      std::copy_n(q.qk_offset + t * 128, n, out.qk_offset.data() + (tile0 + t) * 128);
  }
}

}  // namespace

void make_problem(const ProblemShape& shape, const spec::Recipe& recipe, uint64_t seed,
                  PackedProblem& out) {
  make_inputs(shape, seed, out);
  spec::Problem& p = out.problem;
  p.recipe = &recipe;
  p.hadamard = recipe.hadamard;
  const int d = p.d_pad;
  int64_t q_tiles = 0, blocks = 0, groups = 0;
  for (const spec::SubProblem& sub : p.subs) {
    kernels::SubInfo info{};
    info.q_tile_base = q_tiles;
    info.kv_block_base = blocks;
    info.mu_group_base = groups;
    info.batch = sub.batch;
    info.q_begin = sub.q_begin;
    info.q_len = sub.q_len;
    info.valid_base = static_cast<int64_t>(out.block_valid.size());
    for (const auto& segment : sub.segments)
      for (size_t begin = 0; begin < segment.size(); begin += 128)
        out.block_valid.push_back(
            static_cast<int32_t>(std::min<size_t>(128, segment.size() - begin)));
    info.n_q_tiles = static_cast<int32_t>((sub.q_len + 127) / 128);
    info.n_blocks = static_cast<int32_t>(sub.n_blocks());
    info.kv_block_stride = sub.n_blocks();
    info.mu_group_stride = (sub.n_blocks() + 7) / 8;
    out.max_q_tiles = std::max(out.max_q_tiles, info.n_q_tiles);
    q_tiles += info.n_q_tiles * p.h_q;
    blocks += info.n_blocks * p.h_kv;
    groups += (info.n_blocks + 7) / 8 * p.h_kv;
    out.subs.push_back(info);
  }
  out.q_tiles.resize(static_cast<size_t>(q_tiles * spec::t128_qk_tile_bytes(d)));
  out.k_tiles.resize(static_cast<size_t>(blocks * spec::t128_qk_tile_bytes(d)));
  out.v_tiles.resize(static_cast<size_t>(blocks * spec::t128_v_tile_bytes(d)));
  out.mu_tiles.resize(static_cast<size_t>(groups * spec::t128_mu_tile_bytes(d)));
  out.q_unit.assign(static_cast<size_t>(q_tiles * 64), 0.0f);
  out.qk_offset.assign(static_cast<size_t>(q_tiles * 128), 0.0f);
  out.k_scale.assign(static_cast<size_t>(blocks * 4), 0.0f);
  for (size_t i = 0; i < p.subs.size(); ++i) {
    const spec::SubProblem& sub = p.subs[i];
    const kernels::SubInfo& info = out.subs[i];
    for (int64_t h = 0; h < p.h_kv; ++h) {
      out.kv.push_back(std::make_unique<spec::OwnedKv>());
      spec::allocate(recipe, sub.n_valid(), sub.n_blocks(), d, *out.kv.back());
      spec::prepare_kv(p, sub, h, sub.segments, out.kv.back()->view);
      const spec::KvOperands& kv = out.kv.back()->view;
      pack_kv(p, kv, info.kv_block_base + h * info.n_blocks,
              info.mu_group_base + h * ((info.n_blocks + 7) / 8), out);
      out.s_v.insert(out.s_v.end(), kv.s_v, kv.s_v + d);
    }
    for (int64_t h = 0; h < p.h_q; ++h) {
      const spec::KvOperands& kv =
          out.kv[i * static_cast<size_t>(p.h_kv) + static_cast<size_t>(p.kv_head(h))]->view;
      out.q.push_back(std::make_unique<spec::OwnedQ>());
      spec::allocate(recipe, sub.q_len, d, true, *out.q.back());
      spec::prepare_q(p, sub, h, kv.k_offset, out.q.back()->view);
      const spec::QOperands& q = out.q.back()->view;
      const int e = spec::overflow_exponent(p, *q.max_q_scale, kv.stats->max_k_scale);
      out.exponent.push_back(e);
      pack_q(p, q, e, info.q_tile_base + h * info.n_q_tiles, out);
    }
  }
}

}  // namespace vca::tests
