// SPDX-License-Identifier: Apache-2.0
// Small attention problems for the specification's tests: owned q, k, v, sub-problems, prepared
// operands and traced rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "spec/attention.hpp"
#include "spec/codes.hpp"
#include "spec/operands.hpp"

namespace vca::test {

// FP32 tensors [B, H, S, D] holding values that BF16 holds, as every model's do.
inline spec::TensorView view_of(const std::vector<float>& data, int64_t b, int64_t h, int64_t s,
                                int64_t d) {
  spec::TensorView t;
  t.data = data.data();
  t.dtype = spec::DType::fp32;
  t.shape = {b, h, s, d};
  t.stride = {h * s * d, s * d, d, 1};
  return t;
}

// A number from the generator's bits alone: std:: distributions differ between libraries.
inline double uniform(std::mt19937& g) { return (static_cast<double>(g()) + 0.5) * 0x1p-32; }
inline double normal(std::mt19937& g) {
  const double radius = std::sqrt(-2.0 * std::log(uniform(g)));
  return radius * std::cos(6.283185307179586 * uniform(g));
}

inline std::vector<float> normal_tensor(std::mt19937& g, int64_t n, double sigma,
                                        double offset = 0.0) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = spec::bf16_round(static_cast<float>(sigma * normal(g) + offset));
  return x;
}

struct Shape {
  int64_t b = 1, h_q = 1, h_kv = 1, s_q = 16, s_kv = 256;
  int d = 64;
};

// One sub-problem a batch over all keys until a test says otherwise.
struct Heads {
  std::vector<float> q, k, v;
  spec::Problem p;

  Heads(const Shape& s, uint32_t seed, double qk_sigma = 1.0, double k_offset = 0.0) {
    std::mt19937 g(seed);
    q = normal_tensor(g, s.b * s.h_q * s.s_q * s.d, qk_sigma);
    k = normal_tensor(g, s.b * s.h_kv * s.s_kv * s.d, qk_sigma, k_offset);
    v = normal_tensor(g, s.b * s.h_kv * s.s_kv * s.d, 1.0);
    p.set_tensors(view_of(q, s.b, s.h_q, s.s_q, s.d), view_of(k, s.b, s.h_kv, s.s_kv, s.d),
                  view_of(v, s.b, s.h_kv, s.s_kv, s.d));
    for (int64_t b = 0; b < s.b; ++b) p.subs.push_back(whole(b, s.s_q, s.s_kv));
    use(spec::RecipeId::vc8);
  }
  Heads(const Heads&) = delete;  // the problem's views point into the vectors
  Heads& operator=(const Heads&) = delete;

  static spec::SubProblem whole(int64_t batch, int64_t s_q, int64_t s_kv) {
    spec::SubProblem sub;
    sub.batch = batch;
    sub.q_len = s_q;
    sub.segments.resize(1);
    for (int64_t i = 0; i < s_kv; ++i) sub.segments[0].push_back(i);
    return sub;
  }
  void use(spec::RecipeId id) { use(spec::recipe(id)); }
  void use(const spec::Recipe& r) {
    p.recipe = &r;
    p.hadamard = r.hadamard;
  }
};

using Order = std::vector<std::vector<int64_t>>;

// Operands of one (sub-problem, query head). `order`: null = token order.
struct Prepared {
  spec::OwnedKv kv;
  spec::OwnedQ q;

  Prepared(const spec::Problem& p, const spec::SubProblem& sub, int64_t q_head = 0,
           const Order* order = nullptr) {
    spec::allocate(*p.recipe, sub.n_valid(), sub.n_blocks(), p.d_pad, kv);
    spec::prepare_kv(p, sub, p.kv_head(q_head), order != nullptr ? *order : sub.segments, kv.view);
    spec::allocate(*p.recipe, sub.q_len, p.d_pad, true, q);
    spec::prepare_q(p, sub, q_head, kv.view.k_offset, q.view);
  }
};

// Everything attention_rows can tell about rows [row0, row0 + n).
struct Traced {
  std::vector<int32_t> s;
  std::vector<uint8_t> codes;
  std::vector<float> m, m_run, p, r, o, l, lse;
  int64_t n, n_cols, n_blocks, d;

  Traced(const spec::Problem& problem, const spec::KvOperands& kv, const spec::QOperands& q,
         spec::Target target, int64_t row0, int64_t rows, const spec::Injected* injected = nullptr)
      : n(rows), n_cols(kv.n_cols()), n_blocks(kv.n_blocks), d(problem.d) {
    const auto cols = static_cast<size_t>(n * n_cols), blocks = static_cast<size_t>(n * n_blocks);
    s.resize(cols);
    codes.resize(cols);
    p.resize(cols);
    m.resize(blocks);
    m_run.resize(blocks);
    r.resize(blocks);
    o.resize(static_cast<size_t>(n * d));
    l.resize(static_cast<size_t>(n));
    lse.resize(static_cast<size_t>(n));
    spec::RowOutputs out;
    out.s = s.data();
    out.m = m.data();
    out.m_run = m_run.data();
    out.codes = codes.data();
    out.p = p.data();
    out.r = r.data();
    out.o = o.data();
    out.l = l.data();
    out.lse = lse.data();
    spec::attention_rows(problem, kv, q, target, row0, n, injected, out);
  }
  Traced(const spec::Problem& problem, const Prepared& prepared, spec::Target target, int64_t row0,
         int64_t rows, const spec::Injected* injected = nullptr)
      : Traced(problem, prepared.kv.view, prepared.q.view, target, row0, rows, injected) {}
};

// Recipes that attention_rows runs: all but the FP64 reference.
inline std::vector<const spec::Recipe*> running_recipes() {
  std::vector<const spec::Recipe*> out;
  for (const spec::Recipe& r : spec::kRecipes)
    if (r.id != spec::RecipeId::exact) out.push_back(&r);
  return out;
}

// A chip that can run the recipe: Hopper, or Blackwell where an operand is NVFP4.
inline spec::Target chip_of(const spec::Recipe& r) {
  return r.four_bit() ? spec::Target::sm120 : spec::Target::sm90;
}

// FP64 attention of one row.
struct Exact {
  std::vector<double> o, prob;
  double lse = 0;
  Exact(const spec::Problem& p, const spec::SubProblem& sub, int64_t q_head, int64_t row)
      : o(static_cast<size_t>(p.d)), prob(static_cast<size_t>(sub.n_valid())) {
    spec::exact_row(p, sub, q_head, sub.q_begin + row, o.data(), &lse, prob.data());
  }
};

// sqrt(sum |a - b|^2 / sum |b|^2).
template <class A, class B>
double relative_l2(const A& a, const B& b) {
  double num = 0, den = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    num += (x - y) * (x - y);
    den += y * y;
  }
  return den > 0 ? std::sqrt(num / den) : (num > 0 ? INFINITY : 0.0);
}

}  // namespace vca::test
