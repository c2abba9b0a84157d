// SPDX-License-Identifier: Apache-2.0
// Attention on prepared operands: equality with a plain restatement, injection, invariances, masks,
// and the bounds against FP64 (docs/numerics.md D, E and F10).
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "spec/arith.hpp"
#include "spec/bounds.hpp"
#include "spec/heads.hpp"

namespace vca {
namespace {

using namespace spec;
using test::Exact;
using test::expect_same;
using test::Heads;
using test::label;
using test::Order;
using test::Prepared;
using test::Traced;

// ---- a second telling of vc8 and vc8-turbo on the CPU --------------------------------------

struct Retold {
  std::vector<float> o;
  float l = 0;
};

// Straight from section E and the schedule; FP64 where the specification's FP32 result is exact.
Retold retell(const Problem& p, const Prepared& prepared, int64_t row, const Traced& t) {
  const KvOperands& kv = prepared.kv.view;
  const bool local = p.recipe->reference == Reference::block_max;
  const int d = kv.d_pad;
  std::vector<float> a(static_cast<size_t>(kv.n_blocks * 4)), acc(d, 0.0f), mean(d, 0.0f);
  score_factors(p, kv, prepared.q.view, row, a.data());
  float sums[8] = {}, l[4] = {}, m_run = -INFINITY, beta = 1;
  for (int64_t j = 0; j < kv.n_blocks; ++j) {
    double t_max = -INFINITY;
    std::vector<int32_t> s(kBlock);
    for (int64_t n = 0; n < kBlock; ++n) {
      for (int c = 0; c < d; ++c)
        s[static_cast<size_t>(n)] +=
            int{static_cast<int8_t>(prepared.q.view.q_codes[row * d + c])} *
            static_cast<int8_t>(kv.k_codes[(j * kBlock + n) * d + c]);
      EXPECT_EQ(t.s[static_cast<size_t>(row * t.n_cols + j * kBlock + n)],
                s[static_cast<size_t>(n)]);
      if (kv.order[j * kBlock + n] < 0) continue;  // the maximum over valid keys alone
      const double product = static_cast<double>(s[static_cast<size_t>(n)]) *
                             a[static_cast<size_t>(j * 4 + n % 8 / 2)];
      float up = static_cast<float>(product);
      if (static_cast<double>(up) < product) up = std::nextafter(up, INFINITY);
      t_max = std::max(t_max, static_cast<double>(up));
    }
    const auto m_blk = static_cast<float>(std::ceil(t_max * 16) / 16);
    // O's reference follows a block's only where that is more than 16 octaves above it.
    const float m_new = local ? (m_blk > m_run + 128 ? m_blk : m_run) : std::max(m_run, m_blk);
    const float m = local ? m_blk : m_new;
    EXPECT_EQ(t.m[static_cast<size_t>(row * t.n_blocks + j)], m);
    EXPECT_EQ(t.m_run[static_cast<size_t>(row * t.n_blocks + j)], m_new);
    // Rescale factors are powers of 2^(1/128); a double power, rounded, is the table's entry.
    const auto power = [](float x) {
      return x == -INFINITY ? 0.0f : static_cast<float>(std::exp2(static_cast<double>(x) / 8));
    };
    // A block's weight is cut to 13 bits.
    const auto cut = [](double x) {
      int exponent;
      const double mantissa = std::frexp(x, &exponent);
      return static_cast<float>(std::ldexp(std::floor(mantissa * 8192), exponent - 13));
    };
    const float alpha = power(m_run - m_new), w = local ? cut(power(m_blk - m_new)) : 1.0f;
    m_run = m_new;
    std::vector<float> fresh(d, 0.0f);
    for (float& x : acc) x *= alpha;
    for (float& x : sums) x *= alpha;
    for (float& x : l) x *= alpha;
    beta *= alpha;
    float r = 0;
    for (int64_t n = 0; n < kBlock; ++n) {
      // Dots carry an offset of 1.5 * 2^23, which an addend rounded down takes out again.
      const double factor = a[static_cast<size_t>(j * 4 + n % 8 / 2)], offset = 12582912.0;
      const double exact = 126.0 - static_cast<double>(m) - offset * factor;  // of 53 bits
      auto addend = static_cast<float>(exact);
      if (static_cast<double>(addend) > exact) addend = std::nextafter(addend, -INFINITY);
      const float x = std::fma(static_cast<float>(offset + s[static_cast<size_t>(n)]),
                               static_cast<float>(factor), addend);
      const float code = std::max(0.0f, std::nearbyint(x));
      EXPECT_EQ(t.codes[static_cast<size_t>(row * t.n_cols + j * kBlock + n)], code);
      const float value = e4m3_decode(static_cast<uint8_t>(code));
      std::vector<float>& into = local ? fresh : acc;
      for (int c = 0; c < d; ++c)
        into[c] += value * e4m3_decode(kv.v_codes[(j * kBlock + n) * d + c]);
      if (kv.order[j * kBlock + n] >= 0) r += value;
    }
    EXPECT_EQ(t.r[static_cast<size_t>(row * t.n_blocks + j)], r);
    sums[j % 8] = local ? std::fma(r, w, sums[j % 8]) : r;
    if (local)
      for (int c = 0; c < d; ++c) acc[c] = std::fma(fresh[c], w, acc[c]);
    if (j % 8 != 7 && j != kv.n_blocks - 1) continue;
    for (float& x : sums) x = rna_tf32(x);
    for (int quad = 0; quad < 4; ++quad) l[quad] += sums[2 * quad] + sums[2 * quad + 1];
    for (int c = 0; c < d; ++c) {
      float& into = local ? acc[c] : mean[c];
      if (!local) into = std::fma(into, beta, acc[c]);
      for (int64_t b = j / 8 * 8; b <= j; ++b) into += sums[b % 8] * kv.mu[b * d + c];
      if (!local) acc[c] = 0;
    }
    beta = 1;
    std::fill(sums, sums + 8, 0.0f);
  }
  Retold out;
  out.l = (l[0] + l[1]) + (l[2] + l[3]);
  for (int c = 0; c < p.d; ++c)
    out.o.push_back((local ? acc[c] : mean[c]) * (1.0f / out.l) * kv.s_v[c]);
  return out;
}

TEST(Attention, EqualsAPlainRestatement) {
  for (const RecipeId id : {RecipeId::vc8, RecipeId::vc8_turbo})
    for (const auto& [n, d] : {std::pair{150, 40}, {1300, 128}, {1024, 64}, {5, 80}}) {
      Heads h({1, 1, 1, 5, n, d}, 1, 1.6, 1.0);
      h.use(id);
      const Prepared prepared(h.p, h.p.subs[0]);
      const Traced t(h.p, prepared, Target::cpu, 0, 5);
      for (int64_t row = 0; row < 5; ++row) {
        const Retold told = retell(h.p, prepared, row, t);
        EXPECT_EQ(t.l[static_cast<size_t>(row)], told.l);
        for (int c = 0; c < d; ++c)
          ASSERT_EQ(t.o[static_cast<size_t>(row * d + c)], told.o[static_cast<size_t>(c)]);
      }
    }
}

// ---- injection and determinism -------------------------------------------------------------

TEST(Attention, OwnCodesAndSumsReproduceTheOutput) {
  Heads h({1, 1, 1, 6, 1200, 64}, 2, 1.8, 1.0);
  for (const Recipe* r : test::running_recipes()) {
    if (!r->has_codes()) continue;
    h.use(*r);
    const Prepared prepared(h.p, h.p.subs[0]);
    for (const Target target : kAllTargets) {
      const Traced own(h.p, prepared, target, 0, 6);
      Injected injected;
      injected.codes = own.codes.data();
      // Decoded sums come from the codes; sums of real exponentials have to be given.
      if (!r->decoded_sums()) injected.sums = own.r.data();
      expect_same(own, Traced(h.p, prepared, target, 0, 6, &injected), label(*r, target));
      // It is the injected codes that count: other codes, another output.
      std::vector<uint8_t> other = own.codes;
      for (uint8_t& c : other) c = c > 8 ? c - 8 : 0;
      injected.codes = other.data();
      injected.sums = nullptr;
      const Traced changed(h.p, prepared, target, 0, 6, &injected);
      EXPECT_EQ(changed.codes, other);
      EXPECT_NE(changed.l, own.l);
    }
  }
}

TEST(Attention, RowsDoNotDependOnEachOther) {
  Heads h({1, 1, 1, 21, 300, 128}, 3);
  for (const Recipe* r : test::running_recipes()) {
    h.use(*r);
    const Prepared prepared(h.p, h.p.subs[0]);
    for (const Target target : {Target::cpu, test::chip_of(*r)}) {
      const Traced all(h.p, prepared, target, 0, 21);
      expect_same(all, Traced(h.p, prepared, target, 0, 21), label(*r, target));
      for (const int64_t row : {0, 7, 20}) {
        const Traced one(h.p, prepared, target, row, 1);
        EXPECT_TRUE(std::equal(one.o.begin(), one.o.end(), all.o.begin() + row * 128));
        EXPECT_EQ(one.lse[0], all.lse[static_cast<size_t>(row)]);
      }
    }
  }
}

// Scores, maxima, codes and block sums of decoded-sum recipes with integer scores belong to L1 and
// section E: the same on every chip (bit equality across targets).
TEST(Attention, CodesOfIntegerRecipesAreTheSameOnEveryChip) {
  Heads h({1, 1, 1, 8, 500, 128}, 4, 1.5, 1.0);
  for (const RecipeId id : {RecipeId::vc8, RecipeId::vc8_turbo, RecipeId::vc8_paper}) {
    h.use(id);
    const Prepared prepared(h.p, h.p.subs[0]);
    const Traced cpu(h.p, prepared, Target::cpu, 0, 8);
    for (const Target target : kAllTargets) {
      const Traced chip(h.p, prepared, target, 0, 8);
      EXPECT_EQ(cpu.s, chip.s);
      EXPECT_EQ(cpu.m, chip.m);
      EXPECT_EQ(cpu.codes, chip.codes) << label(*h.p.recipe, target);
    }
  }
}

// ---- against FP64 --------------------------------------------------------------------------

TEST(Attention, WithinTheDerivedBounds) {
  double used = 0;
  for (const int d : {1, 40, 64, 80, 128})
    for (const int64_t s_kv : {1, 63, 65, 127, 128, 129, 300}) {
      // Peaky rows: the output is a few values, so a wrong key, head or mask shows. Grouped-query
      // heads, cross attention and a key offset of 5 come along.
      Heads h({2, 4, 2, 3, s_kv, d}, static_cast<uint32_t>(d * 1000 + s_kv), 1.5, 5.0);
      for (const Recipe* r : test::running_recipes()) {
        h.use(*r);
        for (const Target target : {Target::cpu, test::chip_of(*r)}) {
          const int64_t head = (s_kv + d) % 4;
          used = std::max(used, test::check_rows(h, h.p.subs[s_kv % 2], head, target));
        }
      }
    }
  printf("largest part of an output bound that was used: %.2f\n", used);
  EXPECT_GT(used, 0.05);  // the bounds are of the size of the errors
}

TEST(Attention, GroupedQueryHeadsReadTheirKeyHead) {
  Heads h({2, 6, 2, 4, 200, 64}, 5);
  for (int64_t head = 0; head < 6; ++head) {
    // The same head as a problem of its own.
    Heads one({1, 1, 1, 4, 200, 64}, 6);
    const int64_t q_at = (1 * 6 + head) * 4 * 64, kv_at = (1 * 2 + head / 3) * 200 * 64;
    std::copy_n(h.q.begin() + q_at, 4 * 64, one.q.begin());
    std::copy_n(h.k.begin() + kv_at, 200 * 64, one.k.begin());
    std::copy_n(h.v.begin() + kv_at, 200 * 64, one.v.begin());
    expect_same(Traced(h.p, Prepared(h.p, h.p.subs[1], head), Target::cpu, 0, 4),
                Traced(one.p, Prepared(one.p, one.p.subs[0]), Target::cpu, 0, 4), "head");
  }
}

}  // namespace
}  // namespace vca
