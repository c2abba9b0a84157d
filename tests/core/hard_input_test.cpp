// SPDX-License-Identifier: Apache-2.0
// Input that is allowed and hard: degenerate tokens, extreme magnitudes, odd strides; and the
// faults that this method could have and others could not.
#include "spec/value_stats.hpp"
#include "tests/core/hard.hpp"

namespace vca::test {
namespace {

bool all_finite(const Call& c) {
  for (int64_t b = 0; b < c.shape.b; ++b)
    for (int64_t h = 0; h < c.shape.h_q; ++h)
      for (int64_t s = 0; s < c.shape.s_q; ++s)
        for (int i = 0; i < c.shape.d; ++i)
          if (!std::isfinite(c.o.get(b, h, s, i))) return false;
  return true;
}

struct Reference {
  int64_t n_valid = 0, n_blocks = 0;
  std::vector<int64_t> order;
  std::vector<uint8_t> codes;
  std::vector<float> m, r, o;

  Reference(const vca_attn_desc& desc, int64_t nrows, int64_t h = 0) {
    expect_ok(vca_ref_blocks(&desc, 0, &n_valid, &n_blocks));
    order.resize(static_cast<size_t>(n_blocks * 128));
    codes.resize(order.size() * static_cast<size_t>(nrows));
    m.resize(static_cast<size_t>(nrows * n_blocks));
    r.resize(m.size());
    o.resize(static_cast<size_t>(nrows * desc.q.shape[3]));
    vca_ref_io io{};
    io.struct_size = sizeof(io);
    io.order = order.data();
    io.codes = codes.data();
    io.m = m.data();
    io.r = r.data();
    io.o = o.data();
    expect_ok(vca_ref_attn(&desc, VCA_TARGET_CPU, 0, h, 0, nrows, &io));
  }
};

// (a) V constant per cluster: pure blocks, and the means alone give V back.
TEST(HardInput, ValuesConstantPerClusterComeBackFromTheMeans) {
  constexpr int64_t kTokens = 4 * 256;
  // Scattered, 256 tokens each: 389 is odd, so the product permutes the numbers below 1024.
  const auto cluster = [](int64_t s) { return s * 389 % kTokens / 256; };
  const auto value = [](int64_t cluster, int64_t d) {
    return static_cast<float>((cluster * 37 + d * 11) % 19) - 9.0f;
  };
  for (const int32_t grouping : {VCA_GROUPING_KDTREE, VCA_GROUPING_VSMOOTH, VCA_GROUPING_KMEANS,
                                 VCA_GROUPING_BALANCED, VCA_GROUPING_AUTO}) {
    Call c({1, 1, 1, 4, kTokens, 64}, VCA_FP32);
    c.desc.grouping = grouping;
    c.v.fill([&](int64_t, int64_t, int64_t s, int64_t d) { return value(cluster(s), d); });
    // Query i sees cluster i only: keys of the others score 200 lower.
    c.q.fill([](int64_t, int64_t, int64_t s, int64_t d) { return d == s ? 8.0f : 0.0f; });
    c.k.fill(
        [&](int64_t, int64_t, int64_t s, int64_t d) { return d == cluster(s) ? 200.0f : 0.0f; });
    float energy = 0;
    c.desc.energy_removed = &energy;
    expect_ok(c.run());
    // Block means rounded to BF16 (2^-9): the removed energy misses 1 by twice that at most.
    EXPECT_NEAR(energy, 1.0f, 0x1p-8f) << vca_grouping_str(grouping);
    for (int64_t s = 0; s < 4; ++s)
      for (int64_t d = 0; d < 64; ++d)
        // The residual is the mean's rounding, at most 2^-9 * 9, and E4M3 keeps it to 2^-4 of
        // itself; FP32 sums of 256 terms around it add 256 * 2^-24 of 9.
        ASSERT_NEAR(c.o.get(0, 0, s, d), value(s, d), 9 * (0x1p-13f + 0x1p-16f))
            << vca_grouping_str(grouping) << " row " << s << " channel " << d;
  }
}

// (b) Fewer distinct tokens than clusters, all equal, and NaN in what is padding.
TEST(HardInput, DegenerateTokens) {
  for (const int32_t grouping : {VCA_GROUPING_KDTREE, VCA_GROUPING_VSMOOTH, VCA_GROUPING_KMEANS,
                                 VCA_GROUPING_BALANCED, VCA_GROUPING_AUTO}) {
    for (const int64_t distinct : {1, 2, 3}) {
      Call c({1, 1, 1, 20, 700, 32}, VCA_FP32);
      c.desc.grouping = grouping;
      c.v.fill([&](int64_t, int64_t, int64_t s, int64_t d) {
        return static_cast<float>(s % distinct * 3 + d);
      });
      expect_ok(c.run());
      EXPECT_TRUE(all_finite(c)) << vca_grouping_str(grouping) << " " << distinct;
      if (distinct > 1) continue;
      for (int64_t d = 0; d < 32; ++d)
        // Equal tokens: every average is the token, to the output rounding and one a group of
        // blocks.
        ASSERT_NEAR(c.o.get(0, 0, 3, d), static_cast<float>(d), 31 * 2 * 0x1p-23f);
    }
    Call c({1, 1, 1, 20, 700, 32}, VCA_FP32);
    c.desc.grouping = grouping;
    const int32_t length = 650;
    c.desc.kv_lens = &length;
    expect_ok(c.run());
    const std::vector<uint8_t> want = c.o.bytes();
    for (int64_t s = length; s < 700; ++s)
      for (int64_t d = 0; d < 32; ++d) {
        c.k.set(0, 0, s, d, std::numeric_limits<float>::quiet_NaN());
        c.v.set(0, 0, s, d, -kInf);
      }
    expect_ok(c.run());
    EXPECT_EQ(c.o.bytes(), want) << vca_grouping_str(grouping);
  }
}

// (c) The order is a bijection of the valid tokens, segment by segment; pads are at the ends of
// segments.
TEST(HardInput, OrdersAreBijectionsOfValidTokens) {
  const vca_segment segments[] = {{0, 400, VCA_SEGMENT_VIDEO, 0},
                                  {400, 50, VCA_SEGMENT_PADDING, 0},
                                  {450, 150, VCA_SEGMENT_TEXT, 0}};
  std::vector<uint8_t> mask(600);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 5 != 2;
  for (int32_t grouping = VCA_GROUPING_IDENTITY; grouping <= VCA_GROUPING_AUTO; ++grouping) {
    Call c({1, 1, 1, 2, 600, 32});
    c.desc.grouping = grouping;
    c.desc.segments = segments;
    c.desc.n_segments = 3;
    c.desc.key_mask = mask.data();
    const int64_t grid[3] = {4, 10, 10};
    std::copy_n(grid, 3, c.desc.grid);
    const Reference x(c.desc, 2);
    EXPECT_EQ(x.n_valid, 320 + 120);
    EXPECT_EQ(x.n_blocks, 3 + 1);
    std::vector<int64_t> video, text;
    for (size_t i = 0; i < 384; ++i)
      if (i < 320)
        video.push_back(x.order[i]);
      else
        EXPECT_EQ(x.order[i], -1);
    for (size_t i = 384; i < 512; ++i)
      if (i < 504)
        text.push_back(x.order[i]);
      else
        EXPECT_EQ(x.order[i], -1);
    std::sort(video.begin(), video.end());
    std::sort(text.begin(), text.end());
    std::vector<int64_t> want_video, want_text;
    for (int64_t t = 0; t < 400; ++t)
      if (mask[static_cast<size_t>(t)]) want_video.push_back(t);
    for (int64_t t = 450; t < 600; ++t)
      if (mask[static_cast<size_t>(t)]) want_text.push_back(t);
    EXPECT_EQ(video, want_video) << vca_grouping_str(grouping);
    EXPECT_EQ(text, want_text) << vca_grouping_str(grouping);
  }
}

// (d) The means come back with the block sums of the codes that the kernel multiplied: with V
// constant per block of the order, O is their weighted mean, computed here from m and r alone.
TEST(HardInput, MeansUseTheBlockSumsOfTheCodes) {
  for (const int32_t recipe : {VCA_RECIPE_VC8, VCA_RECIPE_VC8_HQ}) {
    constexpr int64_t kBlocks = 11;
    Call c({1, 1, 1, 5, kBlocks * 128, 64}, VCA_FP32);
    c.desc.recipe = recipe;
    c.desc.grouping = VCA_GROUPING_IDENTITY;
    // Powers of two, so that the rounded means are the values themselves.
    const auto value = [](int64_t block) {
      return std::ldexp(block % 2 == 0 ? 1.0f : -1.0f, static_cast<int>(block % 3));
    };
    c.v.fill([&](int64_t, int64_t, int64_t s, int64_t) { return value(s / 128); });
    const Reference x(c.desc, 5);
    for (int64_t row = 0; row < 5; ++row) {
      const float* m = x.m.data() + row * kBlocks;
      const double top = *std::max_element(m, m + kBlocks);
      double numerator = 0, denominator = 0;
      for (int64_t j = 0; j < kBlocks; ++j) {
        const double w = static_cast<double>(x.r[static_cast<size_t>(row * kBlocks + j)]) *
                         std::exp2((static_cast<double>(m[j]) - top) / 8);
        numerator += w * static_cast<double>(value(j));
        denominator += w;
      }
      // tf32 rounds each block sum (2^-11), numerator and denominator alike, of values up to 4; the
      // means and residuals in units of s_v are rounded to BF16 and E4M3: 2^-9 * 2^-4 of 4.
      const double bound = 2 * 4 * 0x1p-11 + 4 * 0x1p-13;
      for (int64_t d = 0; d < 64; ++d)
        ASSERT_NEAR(static_cast<double>(x.o[static_cast<size_t>(row * 64 + d)]),
                    numerator / denominator, bound);
    }
  }
}

// (e) Codes fall by one with every 1/8 octave, reach 0, never exceed 0x7E, and are ignored where
// masked.
TEST(HardInput, CodesFollowTheScores) {
  Call c({1, 1, 1, 1, 128, 64}, VCA_FP32);
  c.desc.grouping = VCA_GROUPING_IDENTITY;
  c.desc.has_scale = 1;
  c.desc.scale = std::log(2.0) / 8;  // one code for each unit of q.k
  c.q.fill([](int64_t, int64_t, int64_t, int64_t d) { return d == 0 ? 127.0f : 0.0f; });
  // q.k = -2n in steps that INT8 holds exactly: the keys of each scale group reach from 0 to about
  // -254.
  c.k.fill([](int64_t, int64_t, int64_t s, int64_t d) {
    return d == 0 ? -2.0f * static_cast<float>(s) / 127.0f : 0.0f;
  });
  const Reference x(c.desc, 1);
  EXPECT_EQ(*std::max_element(x.codes.begin(), x.codes.end()), 126);
  for (size_t n = 0; n < 128; ++n) {
    EXPECT_LE(x.codes[n], 0x7E);
    // An INT8 step of the 254-wide range is 1 code, so half of it, and one for the mean and the
    // rounded maximum.
    EXPECT_NEAR(static_cast<double>(x.codes[n]),
                std::max(0.0, 126.0 - 2.0 * static_cast<double>(n)), 2.0)
        << n;
    // Between groups a step of each may differ; within a group the codes never rise.
    if (n >= 8) {
      EXPECT_LE(x.codes[n], x.codes[n - 8]) << n;
    }
  }
  EXPECT_EQ(x.codes[127], 0);
}

// (f) A new maximum that exceeds the old one by exactly the smallest step, by a code, by an octave,
// by what O's lazy reference tolerates (128) and by a little more or less, or falls by as much: the
// sums agree, and so does the LSE.
TEST(HardInput, MaximaThatMoveByExactSteps) {
  for (const int32_t recipe :
       {VCA_RECIPE_VC8, VCA_RECIPE_VC8_TURBO, VCA_RECIPE_VC8_PAPER, VCA_RECIPE_VC8_HQ})
    for (const float codes :
         {0.0625f,   1.0f,       8.0f,      42.7f,      64.0f,    126.0f,  127.0f,
          127.9375f, 128.0f,     128.0625f, 128.1f,     1008.0f,  2000.0f, -0.0625f,
          -8.0f,     -127.9375f, -128.0f,   -128.0625f, -1008.0f, -1009.0f}) {
      Call c({1, 1, 1, 1, 9 * 128, 64}, VCA_FP32);
      c.desc.recipe = recipe;
      c.desc.grouping = VCA_GROUPING_IDENTITY;
      c.desc.has_scale = 1;
      c.desc.scale = std::log(2.0) / 8;
      c.q.fill([](int64_t, int64_t, int64_t, int64_t d) { return d == 0 ? 1.0f : 0.0f; });
      c.k.fill([&](int64_t, int64_t, int64_t s, int64_t d) {
        return d == 0 ? codes * static_cast<float>(s / 128) : 0.0f;
      });
      c.v.fill([](int64_t, int64_t, int64_t, int64_t) { return 3.0f; });
      c.with_lse();
      expect_ok(c.run());
      // Keys of a block are equal and INT8 holds them exactly: what is left is F10's, a weight's
      // cut and FP32's share of the logit.
      double sum = 0.0;
      const double unit = std::log(2.0) / 8, top = codes > 0 ? 8.0 * double{codes} : 0.0;
      for (int j = 0; j < 9; ++j)
        sum += 128.0 * std::exp((codes * static_cast<double>(j) - top) * unit);
      const double lse = top * unit + std::log(sum);
      // Half a code and the phase of 448 (F1), the offset of the dots (E2: 1.5 of their factor,
      // which B6 caps), the cut of a weight.
      const double factor = std::min(8.0 * std::fabs(codes), 0x1p23 / 64) / (127.0 * 127.0);
      const double map = unit * (0.5 + 0.4588 + 1.5 * factor) - std::log1p(-0x1p-12);
      EXPECT_NEAR(static_cast<double>(c.lse[0]), lse, map + std::fabs(top * unit) * 0x1p-20)
          << vca_recipe_str(recipe) << " " << codes;
      // Constant V: two groups of blocks, so 2 * 2^-23 of it (docs/numerics.md F5).
      for (int64_t d = 0; d < 64; ++d)
        ASSERT_NEAR(c.o.get(0, 0, 0, d), 3.0f, 3 * 2 * 0x1p-23f)
            << vca_recipe_str(recipe) << " " << codes;
    }
}

// (g) One head far larger than the others changes nothing in them; nor does one that is not finite.
TEST(HardInput, HeadsDoNotTouchEachOther) {
  for (const int32_t recipe : kCodeRecipes) {
    Call c({2, 4, 4, 30, 140, 64}, VCA_FP32);
    c.desc.recipe = recipe;
    expect_ok(c.run());
    Tensor before = std::move(c.o);
    c.output(VCA_FP32);
    for (const float spoiled : {1e4f, kInf, std::numeric_limits<float>::quiet_NaN()}) {
      for (int64_t s = 0; s < 140; ++s)
        for (int64_t d = 0; d < 64; ++d) {
          c.k.set(1, 2, s, d, spoiled);
          c.v.set(1, 2, s, d, spoiled);
        }
      expect_ok(c.run());
      int64_t wrong = 0;
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < 4; ++h)
          for (int64_t s = 0; s < 30; ++s)
            for (int i = 0; i < 64; ++i)
              wrong += (b != 1 || h != 2) && c.o.bits(b, h, s, i) != before.bits(b, h, s, i);
      EXPECT_EQ(wrong, 0) << vca_recipe_str(recipe) << " " << spoiled;
    }
  }
}

// (h) Scales that are no powers of two and no reciprocals of each other, against FP64.
TEST(HardInput, ScalesThatDoNotCancel) {
  Call c({1, 2, 1, 60, 300, 64}, VCA_FP32);
  c.q.fill_normal(1, 3.7f);
  c.k.fill_normal(2, 0.21f);
  c.v.fill_normal(3, 0.013f);
  c.desc.has_scale = 1;
  c.desc.scale = 0.161;  // 3.7 * 0.21 * 0.161 = 0.125: the logits of the unit-normal case
  c.with_lse();
  expect_ok(c.run());
  const Answer a = oracle(c);
  EXPECT_LT(rel_l2(c, a), kUnitNormalError);
  EXPECT_LT(max_lse_error(c, a), kUnitNormalLseError);
}

// Magnitudes from the smallest subnormals to the largest numbers of the input type.
TEST(HardInput, TinyAndHugeMagnitudes) {
  for (const int32_t recipe : kCodeRecipes)
    for (const float size : {1e-45f, 1e-38f, 1e-30f, 1e-12f, 1e4f, 1e12f, 1e18f}) {
      Call c({1, 1, 1, 20, 150, 64}, VCA_FP32);
      c.desc.recipe = recipe;
      c.with_lse();
      c.q.fill_normal(1, size);
      c.k.fill_normal(2, size);
      expect_ok(c.run());
      EXPECT_TRUE(all_finite(c)) << vca_recipe_str(recipe) << " q, k of " << size;
      for (const float x : c.lse)
        ASSERT_FALSE(std::isnan(x)) << vca_recipe_str(recipe) << " " << size;
      c.q.fill_normal(1);
      c.k.fill_normal(2);
      c.v.fill_normal(3, size);
      expect_ok(c.run());
      EXPECT_TRUE(all_finite(c)) << vca_recipe_str(recipe) << " v of " << size;
      // Values scale, and the answer with them, wherever neither end is subnormal.
      if (size > 1e-20f) {
        EXPECT_LT(rel_l2(c, oracle(c)), kUnitNormalError) << vca_recipe_str(recipe) << " " << size;
      }
    }
}

TEST(HardInput, ExactIsExact) {
  Call c({2, 4, 2, 33, 90, 80}, VCA_FP32);
  c.desc.recipe = VCA_RECIPE_EXACT;
  c.with_lse();
  expect_ok(c.run());
  const Answer a = oracle(c);
  // FP64 throughout, one rounding to FP32 at the end.
  EXPECT_LT(rel_l2(c, a), 0x1p-24);
  EXPECT_LT(max_lse_error(c, a), 8 * 0x1p-24);
}

TEST(HardInput, Bf16IsClose) {
  Call c({1, 2, 2, 33, 300, 80}, VCA_BF16);
  c.desc.recipe = VCA_RECIPE_BF16;
  c.output(VCA_FP32);
  c.with_lse();
  expect_ok(c.run());
  const Answer a = oracle(c);
  // The inputs are BF16 already; FP32 sums of 300 terms and an exponential of 2e-7.
  EXPECT_LT(rel_l2(c, a), 300 * 0x1p-24);
  EXPECT_LT(max_lse_error(c, a), 300 * 0x1p-24);
}

}  // namespace
}  // namespace vca::test
