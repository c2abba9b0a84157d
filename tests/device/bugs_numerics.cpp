// SPDX-License-Identifier: Apache-2.0
// Bug lines about numerics, on a device: LSE, stale maxima, overflow, unlike magnitudes. What the
// specification itself makes of these inputs, within derived bounds, is tested on the CPU
// (tests/core/bugs_numerics_test.cpp); here the device has its bits.
#include <cmath>

#include "device/bugs_support.hpp"
#include "tests/core/bounds.hpp"

namespace vca::tests {
namespace {

// With V-Smooth: constant values come back exactly.
constexpr int32_t kRecipes[] = {VCA_RECIPE_VC8, VCA_RECIPE_VC8_TURBO, VCA_RECIPE_VC8_PAPER,
                                VCA_RECIPE_VC8_EXP};

struct Exact {
  std::vector<double> o;
  double lse;
};
// FP64 attention of one query row on the stored inputs, keys [first, first + n).
Exact exact_row(const Problem& p, int64_t row, int64_t first, int64_t n) {
  const int d = p.c.d;
  std::vector<double> x(static_cast<size_t>(n));
  double top = -1e300;
  for (int64_t s = 0; s < n; ++s) {
    double dot = 0;
    for (int i = 0; i < d; ++i)
      dot += double{p.input(0, 0, 0, row, i)} * double{p.input(1, 0, 0, first + s, i)};
    x[static_cast<size_t>(s)] = dot / std::sqrt(static_cast<double>(d));
    top = std::max(top, x[static_cast<size_t>(s)]);
  }
  Exact out{std::vector<double>(static_cast<size_t>(d), 0.0), 0.0};
  double sum = 0;
  for (int64_t s = 0; s < n; ++s) {
    const double w = std::exp(x[static_cast<size_t>(s)] - top);
    sum += w;
    for (int i = 0; i < d; ++i)
      out.o[static_cast<size_t>(i)] += w * double{p.input(2, 0, 0, first + s, i)};
  }
  for (double& o : out.o) o /= sum;
  out.lse = top + std::log(sum);
  return out;
}

TEST(DeviceBugs, B17_LseHoldsTheKeyMean) {
  for (const int32_t recipe : kRecipes) {
    Case c{.name = "B17", .recipe = recipe, .dtype = VCA_FP32, .o_dtype = VCA_FP32};
    c.s_q = 64, c.s_kv = 300, c.d = 64;
    Problem p(c, 31);
    p.fill(1, [](int64_t b, int64_t h, int64_t s, int64_t d) {
      return 5.0f + normal_at(1, b, h, s, d);
    });
    run_and_compare(p);
    const Output o(p);
    // Without scale * q.mean(K) the error would be about 5.
    for (int64_t row = 0; row < c.s_q; ++row)
      ASSERT_NEAR(o.lse(0, 0, row), exact_row(p, row, 0, c.s_kv).lse, test::kUnitNormalLseError)
          << vca_recipe_str(recipe);
  }
}

TEST(DeviceBugs, B18_RingMergeOfShardsWithDifferentKeyMeans) {
  constexpr int64_t kShards = 4, kKeys = 150, kRows = 24;
  constexpr int kDim = 64;
  const float mean[kShards] = {0.0f, 5.0f, -5.0f, 20.0f};
  Case c{.name = "B18", .dtype = VCA_FP32, .o_dtype = VCA_FP32};
  c.s_q = kRows, c.s_kv = kShards * kKeys, c.d = kDim;
  Problem whole(c, 32);
  whole.fill(0, [](int64_t b, int64_t h, int64_t s, int64_t d) {
    return 0.05f * normal_at(2, b, h, s, d);  // small queries keep all four shards in play
  });
  whole.fill(1, [&mean](int64_t b, int64_t h, int64_t s, int64_t d) {
    return mean[s / kKeys] + normal_at(3, b, h, s, d);
  });
  std::vector<double> merged(kRows * kDim, 0.0), weight(kRows, 0.0);
  for (int64_t shard = 0; shard < kShards; ++shard) {
    c.s_kv = kKeys;
    Problem part(c, 32);
    for (const int which : {0, 1, 2})
      part.fill(which, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
        return whole.input(which, b, h, which == 0 ? s : shard * kKeys + s, d);
      });
    run_and_compare(part);
    const Output o(part);
    for (int64_t s = 0; s < kRows; ++s) {
      const double w =
          std::exp(double{o.lse(0, 0, s)} - exact_row(whole, s, 0, kShards * kKeys).lse);
      weight[static_cast<size_t>(s)] += w;
      for (int d = 0; d < kDim; ++d)
        merged[static_cast<size_t>(s * kDim + d)] += w * double{o.at(0, 0, s, d)};
    }
  }
  double error = 0, norm = 0;
  for (int64_t s = 0; s < kRows; ++s) {
    const Exact want = exact_row(whole, s, 0, kShards * kKeys);
    for (int d = 0; d < kDim; ++d) {
      const auto at = static_cast<size_t>(s * kDim + d);
      error +=
          std::pow(merged[at] / weight[static_cast<size_t>(s)] - want.o[static_cast<size_t>(d)], 2);
      norm += std::pow(want.o[static_cast<size_t>(d)], 2);
    }
  }
  // As on the CPU: each part's own error, and a shard's weight off by its LSE error, twice.
  EXPECT_LT(std::sqrt(error / norm), test::kUnitNormalError + 2 * test::kUnitNormalLseError);
}

// [B, H, S] FP32 contiguous, natural logarithm: every (head, row) has a value of its own.
TEST(DeviceBugs, B19_LayoutOfLse) {
  Case c{.name = "B19", .memory = Memory::nhd, .scale = 1.0};
  c.b = 2, c.h_q = c.h_kv = size(4, 2), c.s_q = c.s_kv = size(1024, 130), c.d = 64;
  Problem p(c, 33);
  const auto logit = [](int64_t b, int64_t h, int64_t s) {
    return static_cast<float>(b * 16 + h * 4) + static_cast<float>(s % 16) / 8.0f;  // BF16 holds it
  };
  p.fill(0, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
    return d == 0 ? logit(b, h, s) : 0.0f;
  });
  p.fill(1, [](int64_t, int64_t, int64_t, int64_t d) { return d == 0 ? 1.0f : 0.0f; });
  run_and_compare(p);
  const Output o(p);
  // K is its own mean, so the logit comes back through the offset in FP32 and the rest is ln S.
  for (int64_t b = 0; b < c.b; ++b)
    for (int64_t h = 0; h < c.h_q; ++h)
      for (int64_t s = 0; s < c.s_q; ++s)
        ASSERT_NEAR(o.lse(b, h, s), logit(b, h, s) + std::log(static_cast<float>(c.s_kv)), 1e-4f)
            << b << " " << h << " " << s;
}

TEST(DeviceBugs, B21_HugeLogits) {
  for (const int32_t recipe : kRecipes) {
    Case c{.name = "B21", .recipe = recipe, .dtype = VCA_FP32, .o_dtype = VCA_FP32};
    c.s_q = 64, c.s_kv = 200;
    Problem p(c, 34);
    for (const int which : {0, 1})
      p.fill(which, [which](int64_t b, int64_t h, int64_t s, int64_t d) {
        return 60.0f * normal_at(6 + static_cast<uint64_t>(which), b, h, s, d);
      });
    run_and_compare(p);
    const Output o(p);
    for (int64_t s = 0; s < c.s_q; ++s) ASSERT_TRUE(std::isfinite(o.lse(0, 0, s)));
  }
}

TEST(DeviceBugs, B22_SlowlyRisingMaxima) {
  const double threshold = 8.807;  // log2(448), in octaves
  for (const int32_t recipe : kRecipes) {
    Case c{.name = "B22", .recipe = recipe, .dtype = VCA_FP32, .o_dtype = VCA_FP32};
    c.s_q = 4, c.s_kv = size(512, 12) * 128, c.d = 64, c.scale = 1.0, c.hadamard = -1;
    Problem p(c, 35);
    p.fill(0, [](int64_t, int64_t, int64_t, int64_t d) { return d == 0 ? 1.0f : 0.0f; });
    // Block j peaks at 3.9 octaves * j, folded at the threshold; other keys of the block lie below.
    p.fill(1, [&](int64_t, int64_t, int64_t s, int64_t d) {
      const double octaves = std::fmod(3.9 * static_cast<double>(s / 128), threshold);
      return d == 0 ? static_cast<float>(octaves * std::log(2.0) - static_cast<double>(s % 5))
                    : 0.0f;
    });
    run_and_compare(p);
    p.fill(2, one);
    run_and_compare(p);
    const Output o(p);
    // The same P in numerator and denominator: 2^-23 for a group of 8 blocks (docs/numerics.md F5).
    for (int64_t s = 0; s < c.s_q; ++s)
      for (int d = 0; d < c.d; ++d)
        ASSERT_NEAR(o.at(0, 0, s, d), 1.0f, 64 * 0x1p-23f) << vca_recipe_str(recipe);
  }
}

TEST(DeviceBugs, B23_LongAndPeakedRows) {
  for (const float logit_std : {1.0f, 16.0f})
    for (const int64_t s_kv : {size(4096, 260), size(65536, 390)}) {
      Case c{.name = "B23", .recipe = logit_std > 1 ? VCA_RECIPE_VC8 : VCA_RECIPE_VC8_TURBO};
      c.s_q = 40, c.s_kv = s_kv, c.d = 64;
      Problem p(c, 36);
      p.fill(0, [logit_std](int64_t b, int64_t h, int64_t s, int64_t d) {
        return logit_std * normal_at(7, b, h, s, d);
      });
      run_and_compare(p);
    }
}

TEST(DeviceBugs, B24_OutlierChannelsInKeys) {
  for (const int32_t hadamard : {-1, 1})
    for (const bool shared : {false, true}) {
      Case c{.name = "B24"};
      c.s_q = 64, c.s_kv = 256, c.hadamard = hadamard;
      Problem p(c, 37);
      p.fill(1, [shared](int64_t b, int64_t h, int64_t s, int64_t d) {
        const float x = normal_at(8, b, h, s, d);
        return d % 32 != 5 ? x : shared ? x + 30.0f : x * 30.0f;
      });
      run_and_compare(p);
    }
}

TEST(DeviceBugs, B26_LargeValuesDoNotOverflow) {
  for (const float value : {200.0f, 600.0f}) {
    Case c{.name = "B26", .dtype = VCA_FP16, .o_dtype = VCA_FP16};
    c.s_q = 3, c.s_kv = size(32768, 300), c.d = 32;
    Problem p(c, 38);
    p.fill(0, zero);
    p.fill(2, [value](int64_t, int64_t, int64_t, int64_t) { return value; });
    run(p);
    EXPECT_EQ(Output(p).rows_other_than(value), 0) << value;
  }
}

TEST(DeviceBugs, B27_UniformScores) {
  for (const int64_t s_kv : {7, 128, 777})
    for (const int32_t recipe : kRecipes) {
      Case c{.name = "B27", .recipe = recipe, .dtype = VCA_FP32, .o_dtype = VCA_FP32};
      c.s_q = 10, c.s_kv = s_kv, c.d = 64;
      Problem p(c, 39);
      p.fill(0, zero);
      p.fill(2, one);
      p.lse->fill({0x00, 0x40, 0x42, 0x44});  // 777
      run(p);
      const Output o(p);
      // As on the CPU: sums of equal numbers; the paper's fractional top is off by 3.03 %.
      const double bound = recipe == VCA_RECIPE_VC8_PAPER ? 0.0304 : 1e-5;
      for (int64_t s = 0; s < c.s_q; ++s) {
        ASSERT_NEAR(o.lse(0, 0, s), std::log(static_cast<double>(s_kv)), bound);
        for (int d = 0; d < c.d; ++d) ASSERT_NEAR(o.at(0, 0, s, d), 1.0f, 777 * 0x1p-24f);
      }
    }
}

// Every channel has a scale of its own, so powers of two in V's channels come out as they went in.
TEST(DeviceBugs, B37_ChannelsOfUnlikeMagnitude) {
  const auto power = [](int64_t d) { return static_cast<int>(d * 7 % 21) - 10; };  // 1e-3 to 1e3
  for (const int32_t recipe : kRecipes) {
    Case c{.name = "B37", .recipe = recipe, .dtype = VCA_FP32, .o_dtype = VCA_FP32};
    c.s_q = 20, c.s_kv = 300, c.d = 64;
    const Problem even(c, 40);
    Problem uneven(c, 40);
    uneven.fill(2, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
      return std::ldexp(even.input(2, b, h, s, d), power(d));
    });
    run_and_compare(even);
    run_and_compare(uneven);
    const Output a(even), b(uneven);
    for (int64_t s = 0; s < c.s_q; ++s)
      for (int64_t d = 0; d < c.d; ++d)
        ASSERT_EQ(b.at(0, 0, s, d), std::ldexp(a.at(0, 0, s, d), power(d)))
            << vca_recipe_str(recipe) << ", row " << s << ", channel " << d;
  }
}

}  // namespace
}  // namespace vca::tests
