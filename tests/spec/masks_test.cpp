// SPDX-License-Identifier: Apache-2.0
// Masks, lengths, segments, scales and LSE (docs/numerics.md B5, B6, D and F10).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "spec/bounds.hpp"
#include "spec/heads.hpp"

namespace vca {
namespace {

using namespace spec;
using test::Exact;
using test::expect_same;
using test::Heads;
using test::label;
using test::Prepared;
using test::Traced;

// ---- masks, lengths, segments --------------------------------------------------------------

// Garbage in masked tokens, wherever they stand, changes no bit (pads, tails and statistics).
TEST(Masks, MaskedTokensAreInvisible) {
  std::mt19937 g(7);
  for (const int64_t n : {1, 63, 128, 200, 301}) {
    Heads small({1, 1, 1, 5, n, 64}, 8, 1.5, 2.0);
    const int64_t wide_n = n + 77;
    Heads wide({1, 1, 1, 5, wide_n, 64}, 9);
    SubProblem sub = Heads::whole(0, 5, 0);
    // Any n of the wide tokens are valid; the others hold huge numbers.
    std::vector<int64_t> tokens(static_cast<size_t>(wide_n));
    for (int64_t i = 0; i < wide_n; ++i) tokens[static_cast<size_t>(i)] = i;
    for (size_t i = tokens.size(); i > 1; --i) std::swap(tokens[i - 1], tokens[g() % i]);
    std::sort(tokens.begin(), tokens.begin() + n);
    for (float& x : wide.k) x = static_cast<float>(1e30 * test::normal(g));
    for (float& x : wide.v) x = static_cast<float>(1e30 * test::normal(g));
    for (int64_t i = 0; i < n; ++i) {
      sub.segments[0].push_back(tokens[static_cast<size_t>(i)]);
      std::copy_n(small.k.begin() + i * 64, 64,
                  wide.k.begin() + tokens[static_cast<size_t>(i)] * 64);
      std::copy_n(small.v.begin() + i * 64, 64,
                  wide.v.begin() + tokens[static_cast<size_t>(i)] * 64);
    }
    wide.q = small.q;
    wide.p.q.data = wide.q.data();
    for (const Recipe* r : test::running_recipes()) {
      small.use(*r);
      wide.use(*r);
      for (const Target target : {Target::cpu, test::chip_of(*r)})
        expect_same(Traced(small.p, Prepared(small.p, small.p.subs[0]), target, 0, 5),
                    Traced(wide.p, Prepared(wide.p, sub), target, 0, 5), label(*r, target));
      const Exact a(small.p, small.p.subs[0], 0, 2), b(wide.p, sub, 0, 2);
      EXPECT_EQ(a.o, b.o);
    }
  }
}

TEST(Masks, SegmentsStartFreshBlocks) {
  Heads h({1, 1, 1, 4, 400, 64}, 10, 1.5);
  SubProblem sub = Heads::whole(0, 4, 0);
  sub.segments.resize(3);
  for (int64_t i = 0; i < 200; ++i) sub.segments[0].push_back(i);
  for (int64_t i = 200; i < 230; ++i) sub.segments[1].push_back(i);
  for (int64_t i = 300; i < 400; i += 2) sub.segments[2].push_back(i);
  EXPECT_EQ(sub.n_blocks(), 4);
  const Prepared prepared(h.p, sub);
  const int32_t* order = prepared.kv.view.order;
  EXPECT_EQ(order[199], 199);
  EXPECT_EQ(order[200], -1);
  EXPECT_EQ(order[256], 200);
  EXPECT_EQ(order[256 + 30], -1);
  EXPECT_EQ(order[384 + 49], 398);
  for (const Recipe* r : test::running_recipes()) {
    h.use(*r);
    test::check_rows(h, sub, 0, Target::cpu);
    test::check_rows(h, sub, 0, test::chip_of(*r));
  }
}

TEST(Masks, NoKeyGivesZeroAndMinusInfinity) {
  Heads h({1, 1, 1, 3, 10, 64}, 11);
  SubProblem sub;
  sub.q_len = 3;
  for (const Recipe* r : test::running_recipes()) {
    h.use(*r);
    const Prepared prepared(h.p, sub);
    const Traced t(h.p, prepared, Target::cpu, 0, 3);
    EXPECT_EQ(t.o, std::vector<float>(3 * 64, 0.0f));
    for (const float x : t.lse) EXPECT_EQ(x, -INFINITY);
    const Traced none(h.p, prepared, Target::cpu, 0, 0);  // S_q = 0
    EXPECT_TRUE(none.o.empty());
  }
  EXPECT_EQ(Exact(h.p, sub, 0, 0).lse, -INFINITY);
}

// ---- scale ---------------------------------------------------------------------------------

TEST(Scale, NegativeScaleIsANegatedQuery) {
  Heads h({1, 1, 1, 7, 200, 80}, 12, 1.3, 3.0);
  Heads negated({1, 1, 1, 7, 200, 80}, 12, 1.3, 3.0);
  for (float& x : negated.q) x = -x;
  h.p.scale = -h.p.scale;
  for (const Recipe* r : test::running_recipes()) {
    h.use(*r);
    negated.use(*r);
    expect_same(Traced(h.p, Prepared(h.p, h.p.subs[0]), Target::cpu, 0, 7),
                Traced(negated.p, Prepared(negated.p, negated.p.subs[0]), Target::cpu, 0, 7),
                std::string(r->name));
  }
}

TEST(Scale, ZeroIsUniformAttention) {
  Heads h({1, 1, 1, 2, 300, 64}, 13, 3.0, 5.0);
  h.p.scale = 0;
  for (const Recipe* r : test::running_recipes()) {
    h.use(*r);
    const Prepared prepared(h.p, h.p.subs[0]);
    const Traced t(h.p, prepared, Target::cpu, 0, 2);
    // Every key stands at the maximum. A real exponential of it, 2^(top/8), and its code are what
    // they are to 2^-21; with the line, the code's value against p_of_maximum (F1).
    const double at_top = r->p != PMap::expcast ? 0.0
                          : r->top > 120        ? 0.0
                                                : std::log(256.0 / p_of_maximum(*r));
    // Block sums rounded to tf32, 2^-11; FP32 elsewhere.
    EXPECT_NEAR(t.lse[0], std::log(300.0) + at_top, 0x1p-11 + 0x1p-20) << r->name;
    EXPECT_EQ(t.lse[1], t.lse[0]);
    test::check_rows(h, h.p.subs[0], 0, Target::cpu);
  }
}

TEST(Scale, HugeScoresKeepTheirArgmax) {
  Heads h({1, 1, 1, 6, 300, 128}, 14, 1e4, 0.0);
  for (const Recipe* r : test::running_recipes()) {
    h.use(*r);
    const Prepared prepared(h.p, h.p.subs[0]);
    const int e =
        overflow_exponent(h.p, *prepared.q.view.max_q_scale, prepared.kv.view.stats->max_k_scale);
    EXPECT_GT(e, 0) << r->name;
    const Traced t(h.p, prepared, Target::cpu, 0, 6);
    for (const uint8_t c : t.codes) ASSERT_LE(c, r->p == PMap::cast_u8 ? 255 : 126);
    for (int64_t row = 0; row < 6; ++row) {
      const Exact exact(h.p, h.p.subs[0], 0, row);
      const test::RowBound bound = test::row_bound(h.p, h.p.subs[0], 0, prepared.kv.view,
                                                   prepared.q.view, t, row, row, Target::cpu);
      const double lse = t.lse[static_cast<size_t>(row)];
      EXPECT_LE(exact.lse - lse, bound.lse_low) << r->name;
      EXPECT_LE(lse - exact.lse, bound.lse_high) << r->name;
      EXPECT_LE(bound.score_use, 1.0) << r->name;
      // The best key leads by more than the whole code range, also after the shift: it is the
      // output, to the precision of its stored value.
      std::vector<float> a(static_cast<size_t>(t.n_blocks * 4));
      score_factors(h.p, prepared.kv.view, prepared.q.view, row, a.data());
      double best = -INFINITY, second = -INFINITY;
      std::vector<double> scores;
      int64_t key = 0;
      for (int64_t n = 0; n < 300; ++n) {
        const int32_t s = t.s[static_cast<size_t>(row * t.n_cols + n)];
        const double score = a[static_cast<size_t>(n / kBlock * 4 + k_group(n))] *
                             (r->integer_scores() ? static_cast<double>(s)
                                                  : static_cast<double>(std::bit_cast<float>(s)));
        if (score > best) key = n;
        second = std::max(second, std::min(best, score));
        best = std::max(best, score);
        scores.push_back(score);
      }
      double others = -1;  // the mass of all keys but the best
      for (const double score : scores) others += std::exp2((score - best) / 8);
      // With query means B6's bound adds their size, so e may be one larger: half the lead.
      ASSERT_GT(best - second, r->q_mean ? 63.0 : 126.0);
      for (int c = 0; c < 128; ++c) {
        const double v = h.v[static_cast<size_t>(key * 128 + c)];
        const double stored = dequantised_value(*r, prepared.kv.view, key, c);
        const double mu = r->v_smooth() ? prepared.kv.view.mu[key / kBlock * 128 + c] : 0.0f;
        const double error = std::fabs((stored + mu) * prepared.kv.view.s_v[c] - v);
        // One code against its FP32 exponential: half a step (F2); tf32 rounding of block sums.
        const double cast = r->p == PMap::cast_e4m3 ? 1.0 / 17
                            : r->p == PMap::cast_u8 ? 0.5 / 230
                            : r->fp4_p()            ? 1.0 / 17  // of the micro-scale
                                                    : 0.0;
        ASSERT_NEAR(
            t.o[row * 128 + c], v,
            error * (1 + cast) + std::fabs(v) * cast + (std::fabs(v) + 1) * 0x1p-11 + 10 * others)
            << r->name;
      }
    }
  }
}

// B3: inputs up to 2^112 keep everything finite; below 2^-100 they count as zero.
TEST(Scale, ExtremeMagnitudesStayFinite) {
  for (const int qk : {-120, -60, 0, 50, 111})
    for (const int value : {-120, -60, 0, 50, 111}) {
      Heads h({1, 1, 1, 3, 150, 64}, 16, 1.0, 2.0);
      const auto scaled = [](std::vector<float>& x, int exponent) {
        for (float& v : x) v = std::ldexp(std::clamp(v, -1.9f, 1.9f), exponent);
      };
      scaled(h.q, qk);
      scaled(h.k, qk);
      scaled(h.v, value);
      double largest = 0;
      for (const float x : h.v) largest = std::max(largest, std::fabs(static_cast<double>(x)));
      for (const Recipe* r : test::running_recipes()) {
        // Unquantised scores, |q.k| around 2^225, do not fit FP32 in any implementation.
        if (r->id == RecipeId::bf16 && qk > 60) continue;
        h.use(*r);
        for (const Target target : {Target::cpu, test::chip_of(*r)}) {
          const Traced t(h.p, Prepared(h.p, h.p.subs[0]), target, 0, 3);
          for (const uint8_t c : t.codes) ASSERT_LE(c, r->p == PMap::cast_u8 ? 255 : 126);
          for (const float l : t.l) ASSERT_TRUE(std::isfinite(l) && l > 0) << label(*r, target);
          // A mean of values, each known to 1/16; FP32-sum recipes add 1/17 for the cast, and NVFP4
          // rounds an element of P to at most twice itself.
          const double most = r->fp4_p() ? 2.13 : 1.13;
          for (const float x : t.o)
            ASSERT_LE(std::fabs(static_cast<double>(x)), largest * most) << label(*r, target);
        }
      }
    }
}

// ---- LSE merges shards ---------------------------------------------------------------------

TEST(Lse, FourShardsMergeToTheWhole) {
  Heads h({1, 1, 1, 8, 512, 64}, 15, 1.2, 5.0);
  for (const Recipe* r : test::running_recipes()) {
    h.use(*r);
    std::vector<Exact> whole;
    for (int64_t row = 0; row < 8; ++row) whole.emplace_back(h.p, h.p.subs[0], 0, row);
    std::vector<double> o(8 * 64), l(8), spread(8), own(8 * 64);
    for (int64_t shard = 0; shard < 4; ++shard) {
      SubProblem sub = Heads::whole(0, 8, 0);  // other K offsets, other scales in each shard
      for (int64_t i = shard * 128; i < shard * 128 + 128 - 9 * shard; ++i)
        sub.segments[0].push_back(i);
      if (shard == 3)
        for (int64_t s = 1; s < 4; ++s)
          for (int64_t i = s * 128 + 128 - 9 * s; i < s * 128 + 128; ++i)
            sub.segments[0].push_back(i);
      const Prepared prepared(h.p, sub);
      const Target chip = test::chip_of(*r);
      const Traced t(h.p, prepared, chip, 0, 8);
      for (int64_t row = 0; row < 8; ++row) {
        const auto at = static_cast<size_t>(row);
        const test::RowBound bound =
            test::row_bound(h.p, sub, 0, prepared.kv.view, prepared.q.view, t, row, row, chip);
        EXPECT_LE(bound.score_use, 1.0);
        const double weight = std::exp(t.lse[at] - whole[at].lse);
        l[at] += weight;
        spread[at] = std::max(spread[at], bound.lse_low + bound.lse_high);
        for (size_t c = 0; c < 64; ++c) {
          o[at * 64 + c] += weight * t.o[at * 64 + c];
          own[at * 64 + c] = std::max(own[at * 64 + c], bound.output[c]);
        }
      }
    }
    for (size_t row = 0; row < 8; ++row)
      for (size_t c = 0; c < 64; ++c) {
        double largest = 0;
        for (size_t i = 0; i < 512; ++i)
          largest = std::max(largest, std::fabs(static_cast<double>(h.v[i * 64 + c])));
        // Weights off by e^(+-) within the LSE's interval: F2 on four shards.
        const double merge = 2 * largest * std::tanh(spread[row] / 4);
        EXPECT_NEAR(o[row * 64 + c] / l[row], whole[row].o[c], own[row * 64 + c] + merge)
            << r->name;
      }
  }
}

}  // namespace
}  // namespace vca
