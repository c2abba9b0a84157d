// SPDX-License-Identifier: Apache-2.0
// Rotary embedding of the four models, written a second time in FP64 from their public definitions
// (the models' own code; MiniMax-H3: diffusers), in the shape those use: one complex or half-split
// rotation a token, frequencies by axis.
#include "spec/rope.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <complex>
#include <random>

#include "spec/heads.hpp"

namespace vca {
namespace {

using namespace spec;

// Wan2.2 and LongCat-Video: of head_dim d the axes t, h, w get d - 4 (d/6), 2 (d/6), 2 (d/6) dims;
// frequencies theta^(-2i/dim), theta 10,000; x read as complex numbers (x[2i], x[2i+1]).
std::vector<double> wan(const std::vector<float>& x, const std::array<int64_t, 3>& position) {
  const int d = static_cast<int>(x.size());
  const std::array<int, 3> dims = {d - 4 * (d / 6), 2 * (d / 6), 2 * (d / 6)};
  std::vector<std::complex<double>> turn;
  for (size_t axis = 0; axis < 3; ++axis)
    for (int i = 0; i < dims[axis]; i += 2)
      turn.push_back(std::polar(1.0, static_cast<double>(position[axis]) /
                                         std::pow(10000.0, static_cast<double>(i) / dims[axis])));
  std::vector<double> out(x.size());
  for (size_t i = 0; i < turn.size(); ++i) {
    const std::complex<double> y = std::complex<double>(x[2 * i], x[2 * i + 1]) * turn[i];
    out[2 * i] = y.real();
    out[2 * i + 1] = y.imag();
  }
  return out;
}

// HunyuanVideo-1.5: cos and sin tables with every angle repeated twice, x * cos + rotate(x) * sin
// with rotate(x)[2i] = -x[2i+1], rotate(x)[2i+1] = x[2i]; rope_dim_list 16, 56, 56, theta 256.
std::vector<double> hunyuan(const std::vector<float>& x, const std::array<int64_t, 3>& position) {
  const std::array<int, 3> dims = {16, 56, 56};
  std::vector<double> angle;
  for (size_t axis = 0; axis < 3; ++axis)
    for (int i = 0; i < dims[axis] / 2; ++i)
      for (int twice = 0; twice < 2; ++twice)
        angle.push_back(static_cast<double>(position[axis]) *
                        std::pow(256.0, -2.0 * i / dims[axis]));
  std::vector<double> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double rotated = i % 2 == 0 ? -static_cast<double>(x[i + 1]) : x[i - 1];
    out[i] = x[i] * std::cos(angle[i]) + rotated * std::sin(angle[i]);
  }
  return out;
}

// MiniMax-H3: 16 frequencies 10000^(-i/16) shared by three axes; the 48 angles are concatenated
// with themselves and rotate the first 96 of 128 dims, halves (x[i], x[i+48]); the rest passes.
std::vector<double> minimax(const std::vector<float>& x, const std::array<int64_t, 3>& position) {
  std::vector<double> out(x.begin(), x.end());
  for (size_t f = 0; f < 48; ++f) {
    const double angle = static_cast<double>(position[f / 16]) *
                         std::pow(10000.0, -static_cast<double>(f % 16) / 16);
    out[f] = x[f] * std::cos(angle) - x[f + 48] * std::sin(angle);
    out[f + 48] = x[f + 48] * std::cos(angle) + x[f] * std::sin(angle);
  }
  return out;
}

struct Model {
  const char* name;
  RopeConvention convention;
  std::array<int, 3> axis_dim;
  double theta;
  std::vector<double> (*reference)(const std::vector<float>&, const std::array<int64_t, 3>&);
};
const Model kModels[] = {
    {"Wan2.2, LongCat", RopeConvention::interleaved, {44, 42, 42}, 1e4, wan},
    {"HunyuanVideo-1.5", RopeConvention::interleaved, {16, 56, 56}, 256, hunyuan},
    {"MiniMax-H3", RopeConvention::half, {32, 32, 32}, 1e4, minimax},
};

TEST(Rope, MatchesTheModels) {
  std::mt19937 g(1);
  // 720p of Wan2.2 in space; the last positions have the largest angles.
  const std::array<int64_t, 3> grid = {21, 45, 80};
  for (const Model& model : kModels) {
    const int64_t begin = 7;  // tokens before the video pass through
    const Rope rope = make_rope(model.convention, model.axis_dim, model.theta, grid, begin);
    EXPECT_EQ(rope.rotated, model.axis_dim[0] + model.axis_dim[1] + model.axis_dim[2]);
    const int64_t n = 21 * 45 * 80;
    for (int trial = 0; trial < 300; ++trial) {
      const int64_t local = trial == 0 ? 0 : trial == 1 ? n - 1 : static_cast<int64_t>(g()) % n;
      const std::array<int64_t, 3> position = {local / (45 * 80), local / 80 % 45, local % 80};
      const std::vector<float> x = test::normal_tensor(g, 128, 1.0);
      const std::vector<double> expected = model.reference(x, position);
      std::vector<float> y = x;
      rope.apply(begin + local, y.data());
      std::vector<double> y64(x.begin(), x.end());
      rope.apply(begin + local, y64.data());
      for (size_t i = 0; i < 128; ++i) {
        // Tables are FP32 (half an ulp below one: 2^-25 each), then two products and a sum (2^-24
        // each). |x0| + |x1| bounds both terms; for the partner take the largest of the row.
        double largest = 0;
        for (const float v : x) largest = std::max(largest, std::fabs(static_cast<double>(v)));
        const double size = std::fabs(static_cast<double>(x[i])) + largest;
        ASSERT_NEAR(y[i], expected[i], size * 3 * 0x1p-24) << model.name << " " << local;
        ASSERT_NEAR(y64[i], expected[i], size * 0x1p-25 + 1e-14);
      }
    }
  }
}

TEST(Rope, OnlyTheVideoTokensAndTheRotatedDims) {
  const Model& h3 = kModels[2];
  const Rope rope = make_rope(h3.convention, h3.axis_dim, h3.theta, {2, 3, 4}, 5);
  std::mt19937 g(2);
  for (int64_t token = 0; token < 40; ++token) {
    const std::vector<float> x = test::normal_tensor(g, 128, 1.0);
    std::vector<float> y = x;
    rope.apply(token, y.data());
    const bool inside = token >= 5 && token < 5 + 24;
    // The first video token has position 0, 0, 0: rotated by nothing.
    EXPECT_EQ(y == x, !inside || token == 5) << token;
    EXPECT_TRUE(std::equal(x.begin() + 96, x.end(), y.begin() + 96));
  }
}

TEST(Rope, CallersTablesGiveTheSameBits) {
  std::mt19937 g(3);
  for (const Model& model : kModels) {
    const std::array<int64_t, 3> grid = {3, 4, 5};
    const Rope rope = make_rope(model.convention, model.axis_dim, model.theta, grid, 0);
    const int pairs = rope.rotated / 2;
    std::vector<float> cos, sin;
    for (int64_t token = 0; token < 60; ++token) {
      const std::array<int64_t, 3> at = {token / 20, token / 5 % 4, token % 5};
      for (int f = 0, axis = 0, i = 0; f < pairs; ++f) {
        const double angle = static_cast<double>(at[static_cast<size_t>(axis)]) *
                             std::pow(model.theta, -2.0 * i / model.axis_dim[axis]);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
        if (++i == model.axis_dim[axis] / 2) {
          i = 0;
          ++axis;
        }
      }
    }
    const Rope tables =
        make_rope_from_tables(model.convention, rope.rotated, cos.data(), sin.data(), 60);
    for (int64_t token = 0; token < 62; ++token) {
      std::vector<float> x = test::normal_tensor(g, 128, 1.0), y = x;
      rope.apply(token, x.data());
      tables.apply(token, y.data());
      EXPECT_EQ(x, y) << model.name << " " << token;
    }
  }
}

// A problem that names its embedding equals the problem whose q and k were rotated before.
TEST(Rope, InsideAttentionEqualsRotatedInputs) {
  for (const Model& model : kModels) {
    test::Heads h({1, 1, 1, 60, 60, 128}, 4, 1.0, 2.0);
    test::Heads rotated({1, 1, 1, 60, 60, 128}, 4, 1.0, 2.0);
    h.p.rope = make_rope(model.convention, model.axis_dim, model.theta, {3, 4, 4}, 6);
    for (int64_t token = 0; token < 60; ++token) {
      h.p.rope.apply(token, rotated.q.data() + token * 128);
      h.p.rope.apply(token, rotated.k.data() + token * 128);
    }
    for (const RecipeId id : {RecipeId::vc8, RecipeId::sage2, RecipeId::vc8_paper}) {
      h.use(id);
      rotated.use(id);
      const test::Prepared a(h.p, h.p.subs[0]), b(rotated.p, rotated.p.subs[0]);
      EXPECT_EQ(a.kv.bytes, b.kv.bytes) << model.name;
      EXPECT_EQ(a.q.bytes, b.q.bytes);
      const test::Traced x(h.p, a, Target::cpu, 0, 60), y(rotated.p, b, Target::cpu, 0, 60);
      EXPECT_EQ(x.o, y.o);
      EXPECT_EQ(x.lse, y.lse);
    }
    // The reference rotates in FP64 with the same tables. The FP32 rotation is off by 3 * 2^-24 of
    // |x0| + |x1| (above), a score by 2 * 3 * 2^-24 * 2 * sum |q||k| / sqrt(128) or so; with |q| <
    // 5 and |k| < 7 that is below 3e-4, and the output by a few times that of values around 1.
    const test::Exact e(h.p, h.p.subs[0], 0, 17), f(rotated.p, rotated.p.subs[0], 0, 17);
    EXPECT_LT(std::fabs(e.lse - f.lse), 3e-4);
    EXPECT_LT(test::relative_l2(f.o, e.o), 3e-3);
  }
}

}  // namespace
}  // namespace vca
