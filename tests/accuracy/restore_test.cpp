// SPDX-License-Identifier: Apache-2.0
// Exact identities of the method: the mean comes back exactly (docs/numerics.md F5), reordering
// (F6) and a constant added to the keys (F7) change nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "spec/bounds.hpp"
#include "spec/heads.hpp"
#include "spec/mma_fp4.hpp"

namespace vca {
namespace {

using namespace spec;
using test::Heads;
using test::Order;
using test::Prepared;
using test::Traced;

std::vector<const Recipe*> smooth_recipes() {
  std::vector<const Recipe*> out;
  for (const Recipe* r : test::running_recipes())
    if (r->v_smooth()) out.push_back(r);
  return out;
}

// ---- F5 ------------------------------------------------------------------------------------

// Without residuals and with one mean for all blocks, O and l are sums of the same rounded block
// sums: O = mean * s_v up to FP32. A group of 8 blocks costs, in units of 2^-24, at most
//   mean MMA   8 (eight additions, CPU; F = 25: 9 terms truncated and one result, 6.5)
//   l          3 (two levels, one addition to the quad)
//   rescaling  8 of O (or of the group factor, plus one FMA) and 8 of l
// and the epilogue 5 (two levels of l, RN(1/l), two products).
TEST(MeanRestore, ExactToFp32) {
  for (const int64_t n : {100, 128, 1024, 1100, 5000}) {
    Heads h({1, 1, 1, 4, n, 64}, static_cast<uint32_t>(n), 2.0);
    for (const Recipe* r : smooth_recipes()) {
      h.use(*r);
      Prepared prepared(h.p, h.p.subs[0]);
      KvOperands& kv = prepared.kv.view;
      std::memset(kv.v_codes, 0, static_cast<size_t>(kv_sizes(*r, kv.n_blocks, 64).v_codes));
      for (int64_t j = 1; j < kv.n_blocks; ++j) std::copy_n(kv.mu, 64, kv.mu + j * 64);
      const double groups = std::ceil(static_cast<double>(kv.n_blocks) / 8);
      // NVFP4 restores a block's mean at once: two roundings of O and two of l a block.
      const double units =
          r->flow() == Flow::means ? 4 * static_cast<double>(kv.n_blocks) : groups * 28;
      for (const Target target : {Target::cpu, test::chip_of(*r), Target::sm120}) {
        const Traced t(h.p, prepared, target, 0, 4);
        double worst = 0;
        for (int64_t i = 0; i < 4 * 64; ++i) {
          const double mean = static_cast<double>(kv.mu[i % 64]) * kv.s_v[i % 64];
          const double error = std::fabs(t.o[static_cast<size_t>(i)] - mean);
          ASSERT_LE(error, (units + 5) * 0x1p-24 * std::fabs(mean))
              << test::label(*r, target) << " " << n;
          worst = std::max(worst, error / std::fabs(mean));
        }
        if (n == 5000 && r->id == RecipeId::vc8)
          printf("%s: %.2f x ceil(blocks / 8) 2^-23\n", test::label(*r, target).c_str(),
                 worst / (groups * 0x1p-23));
      }
    }
  }
}

// V constant in a channel: the residual is what the BF16 mean left, 2^-9 of V, known to 2^-4 of
// itself, so O is within 2^-13 of V (and 2^-18 for the sums above). BF16 and FP16 values lie 2^-8
// and 2^-11 apart: rounded to their own type they come back bit for bit. NVFP4 knows the residual
// to the 1/17 of its micro-scale and an element of P to a quarter of itself: 2^-10.6 of V, so BF16
// values come back.
TEST(MeanRestore, ConstantValuesComeBack) {
  for (const int64_t n : {1, 100, 300, 1500}) {
    for (const bool half : {false, true}) {
      Heads h({1, 1, 1, 3, n, 64}, static_cast<uint32_t>(n), 1.5, 2.0);
      std::mt19937 g(3);
      for (size_t c = 0; c < 64; ++c) {
        const auto x = static_cast<float>(test::normal(g) * std::exp2(8 * test::uniform(g) - 4));
        for (size_t i = 0; i < static_cast<size_t>(n); ++i)
          h.v[i * 64 + c] = half ? fp16_decode(fp16_encode(x)) : bf16_round(x);
      }
      for (const Recipe* r : smooth_recipes()) {
        h.use(*r);
        const Prepared prepared(h.p, h.p.subs[0]);
        const float bound =
            r->fp4_v() ? 0x1p-9f * (1.0f / 17 + 0.25f) + 0x1p-18f : 0x1p-13f + 0x1p-18f;
        for (const Target target : kAllTargets) {
          if (r->four_bit() && !has_nvfp4(target)) continue;
          const Traced t(h.p, prepared, target, 0, 3);
          for (size_t i = 0; i < t.o.size(); ++i) {
            const float v = h.v[i % 64];
            ASSERT_LE(std::fabs(t.o[i] - v), std::fabs(v) * bound) << test::label(*r, target);
            if (half && r->fp4_v()) continue;
            if (half)
              ASSERT_EQ(fp16_encode(t.o[i]), fp16_encode(v)) << test::label(*r, target);
            else
              ASSERT_EQ(bf16_encode(t.o[i]), bf16_encode(v)) << test::label(*r, target);
          }
        }
      }
    }
  }
}

double score_of(const Recipe& r, int32_t s) {
  return r.integer_scores() ? static_cast<double>(s) : static_cast<double>(std::bit_cast<float>(s));
}

// V constant in every block: only block sums enter, so a recipe whose sums are those of real
// exponentials has no error of P left, and one with decoded sums that of its block sums alone.
TEST(MeanRestore, ConstantBlocksSeeBlockSumsOnly) {
  Heads h({1, 1, 1, 6, 1600, 64}, 5, 1.8);
  for (size_t i = 0; i < h.v.size(); ++i) h.v[i] = h.v[i % 64 + i / (64 * 128) * 64 * 128];
  for (const Recipe* r : smooth_recipes()) {
    h.use(*r);
    const Prepared prepared(h.p, h.p.subs[0]);
    const KvOperands& kv = prepared.kv.view;
    for (const Target target : {Target::cpu, test::chip_of(*r)}) {
      const Traced t(h.p, prepared, target, 0, 6);
      std::vector<float> a(static_cast<size_t>(kv.n_blocks * 4));
      for (int64_t row = 0; row < 6; ++row) {
        score_factors(h.p, kv, prepared.q.view, row, a.data());
        const float* m = t.m.data() + row * kv.n_blocks;
        const double m_final = t.m_run[static_cast<size_t>((row + 1) * kv.n_blocks - 1)];
        std::vector<double> mass(static_cast<size_t>(kv.n_blocks));
        double total = 0;
        for (int64_t j = 0; j < kv.n_blocks; ++j) {
          double sum = 0;
          if (r->decoded_sums()) {
            sum = std::exp2((static_cast<double>(m[j]) - m_final) / 8) *
                  t.r[static_cast<size_t>(row * kv.n_blocks + j)];
          } else {
            for (int64_t n = j * kBlock; n < (j + 1) * kBlock && n < 1600; ++n)
              sum += std::exp2((score_of(*r, t.s[static_cast<size_t>(row * t.n_cols + n)]) *
                                    a[static_cast<size_t>(j * 4 + n % 8 / 2)] -
                                m_final) /
                               8);
          }
          total += mass[static_cast<size_t>(j)] = sum;
        }
        for (int64_t c = 0; c < 64; ++c) {
          double expected = 0, size = 0;
          for (int64_t j = 0; j < kv.n_blocks; ++j) {
            const double v = h.v[static_cast<size_t>(j * kBlock * 64 + c)];
            const double p = mass[static_cast<size_t>(j)] / total;
            expected += p * v;
            size += p * std::fabs(v);
          }
          // Block sums to tf32, in O and in l: 2^-11 each. The residual of the BF16 mean, 2^-9 of
          // V, carries the map's error: 1/17 of it with exp and cast, and 2^-4 of it from E4M3.
          // NVFP4: a quarter of it from P, and 1/17 from the micro-scale.
          const double of_residual = r->fp4_v() ? 0.25 + 1.0 / 17 : 1.0 / 17 + 1.0 / 16;
          const double bound = size * (2 * 0x1p-11 + 0x1p-9 * of_residual + 0x1p-16);
          ASSERT_NEAR(t.o[static_cast<size_t>(row * 64 + c)], expected, bound + kv.s_v[c] * 0x1p-10)
              << test::label(*r, target);
        }
      }
    }
  }
}

// ---- F6 ------------------------------------------------------------------------------------

std::vector<int64_t> permutation(int64_t n, uint32_t seed) {
  std::mt19937 g(seed);
  std::vector<int64_t> p(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) p[static_cast<size_t>(i)] = i;
  for (size_t i = p.size(); i > 1; --i) std::swap(p[i - 1], p[g() % i]);
  return p;
}

TEST(Reordering, KeysAndValuesTogetherChangeNothing) {
  constexpr int64_t kN = 700;
  Heads h({1, 1, 1, 5, kN, 64}, 6, 1.6, 1.0), moved({1, 1, 1, 5, kN, 64}, 6, 1.6, 1.0);
  const std::vector<int64_t> pi = permutation(kN, 7);
  Order order(1, std::vector<int64_t>(kN));
  for (int64_t i = 0; i < kN; ++i) {
    const auto to = static_cast<size_t>(i), from = static_cast<size_t>(pi[to]);
    std::copy_n(h.k.begin() + static_cast<int64_t>(from) * 64, 64, moved.k.begin() + i * 64);
    std::copy_n(h.v.begin() + static_cast<int64_t>(from) * 64, 64, moved.v.begin() + i * 64);
    order[0][from] = i;  // gathers the moved tokens back
  }
  for (int64_t row = 0; row < 5; ++row) {
    const test::Exact a(h.p, h.p.subs[0], 0, row), b(moved.p, moved.p.subs[0], 0, row);
    // n additions of products p v, and as many of the exponentials: 2 n 2^-53 of sum p |v|.
    for (size_t c = 0; c < 64; ++c) EXPECT_NEAR(a.o[c], b.o[c], 4 * kN * 0x1p-53 * 5);
  }
  for (const Recipe* shipped : test::running_recipes()) {
    // The K offset is a mean over token order; without it the bytes are the same.
    Recipe r = *shipped;
    r.k_mean = false;
    h.use(r);
    moved.use(r);
    for (const Target target : {Target::cpu, test::chip_of(r)})
      test::expect_same(
          Traced(h.p, Prepared(h.p, h.p.subs[0]), target, 0, 5),
          Traced(moved.p, Prepared(moved.p, moved.p.subs[0], 0, &order), target, 0, 5),
          test::label(r, target));
    // Any order is right; only the blocks differ.
    h.use(*shipped);
    const Order shuffled(1, pi);
    test::check_rows(h, h.p.subs[0], 0, Target::cpu, &shuffled);
  }
}

// ---- F7 ------------------------------------------------------------------------------------

// Keys on a grid of 1/64 and a constant of whole numbers: the mean of 16 or 256 rows is exact, so
// the codes, and with them everything but the LSE, are the same bits.
TEST(KeyConstant, ChangesNothingButTheLse) {
  Heads h({1, 1, 1, 6, 256, 64}, 8), shifted({1, 1, 1, 6, 256, 64}, 8);
  std::vector<double> constant(64);
  std::mt19937 g(9);
  for (double& c : constant) c = static_cast<double>(static_cast<int>(g() % 33) - 16);
  for (size_t i = 0; i < h.k.size(); ++i) {
    h.k[i] = std::nearbyint(h.k[i] * 64) / 64;
    shifted.k[i] = h.k[i] + static_cast<float>(constant[i % 64]);
  }
  for (const Recipe* r : test::running_recipes()) {
    if (!r->k_mean) continue;
    h.use(*r);
    shifted.use(*r);
    const Prepared a(h.p, h.p.subs[0]), b(shifted.p, shifted.p.subs[0]);
    EXPECT_EQ(a.kv.bytes, b.kv.bytes) << r->name;
    for (const Target target : {Target::cpu, test::chip_of(*r)}) {
      const Traced x(h.p, a, target, 0, 6), y(shifted.p, b, target, 0, 6);
      EXPECT_EQ(x.s, y.s);
      EXPECT_EQ(x.codes, y.codes);
      EXPECT_EQ(x.o, y.o) << test::label(*r, target);
      for (int64_t row = 0; row < 6; ++row) {
        double shift = 0, size = 0;
        for (int64_t c = 0; c < 64; ++c) {
          const double term = h.q[static_cast<size_t>(row * 64 + c)] * constant[c] * h.p.scale;
          shift += term;
          size += std::fabs(term);
        }
        // scale q.k and the LSE are stored in FP32.
        EXPECT_NEAR(y.lse[row] - x.lse[row], shift, (size + 20) * 0x1p-22) << r->name;
      }
    }
  }
}

// Any constant: the means differ by FP32 rounding, so a code moves by one step at most, and rarely.
TEST(KeyConstant, AnyConstantMovesFewCodesByOne) {
  Heads h({1, 1, 1, 4, 1000, 128}, 10), shifted({1, 1, 1, 4, 1000, 128}, 10);
  for (size_t i = 0; i < h.k.size(); ++i)
    shifted.k[i] = h.k[i] + 5.3f * static_cast<float>(std::sin(static_cast<double>(i % 128)));
  for (const RecipeId id : {RecipeId::vc8, RecipeId::sage2}) {
    h.use(id);
    shifted.use(id);
    const Prepared a(h.p, h.p.subs[0]), b(shifted.p, shifted.p.subs[0]);
    int64_t moved = 0;
    const int64_t codes = a.kv.view.n_cols() * 128;
    for (int64_t i = 0; i < codes; ++i) {
      const int step =
          static_cast<int8_t>(a.kv.view.k_codes[i]) - static_cast<int8_t>(b.kv.view.k_codes[i]);
      ASSERT_LE(std::abs(step), 1);
      moved += step != 0;
    }
    // A code moves where its argument lies that close to a tie: |k + c| < 16 is known to 2^-20, the
    // mean of 1,000 of them to 10 roundings more; the step is amax / 127 > 0.01. So the share is
    // below 2 * 2^-20 * 11 / 0.01.
    EXPECT_LT(static_cast<double>(moved), 0.0021 * static_cast<double>(codes));
    for (int64_t row = 0; row < 4; ++row) {
      const test::Exact e(h.p, h.p.subs[0], 0, row), f(shifted.p, shifted.p.subs[0], 0, row);
      EXPECT_LT(test::relative_l2(f.o, e.o), 1e-4);  // k + c is itself rounded to FP32, 2^-21
    }
  }
}

}  // namespace
}  // namespace vca
