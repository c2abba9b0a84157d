// SPDX-License-Identifier: Apache-2.0
// Problems for the tests of the library: owned tensors in any layout and type, a descriptor on
// them, the FP64 answer and the specification's answer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/execute.hpp"
#include "core/problem_text.hpp"
#include "core/request.hpp"
#include "spec/attention.hpp"
#include "spec/codes.hpp"
#include "spec/operands.hpp"
#include "vca/vca.h"

namespace vca::test {

struct Shape {
  int64_t b = 1, h_q = 1, h_kv = 1, s_q = 1, s_kv = 1;
  int d = 64;
};

enum class Layout { hnd, nhd };

inline uint32_t encode(int32_t dtype, float x) {
  if (dtype == VCA_BF16) return spec::bf16_encode(x);
  if (dtype == VCA_FP16) return spec::fp16_encode(x);
  return spec::float_bits(x);
}
inline float decode(int32_t dtype, uint32_t bits) {
  if (dtype == VCA_BF16) return spec::bf16_decode(static_cast<uint16_t>(bits));
  if (dtype == VCA_FP16) return spec::fp16_decode(static_cast<uint16_t>(bits));
  return spec::float_from_bits(bits);
}

// A tensor that owns its bytes; every byte starts as `poison`, so that elements nobody wrote show.
class Tensor {
 public:
  Tensor() = default;
  Tensor(int64_t b, int64_t h, int64_t s, int64_t d, int32_t dtype, Layout layout,
         uint8_t poison = 0x7F) {
    view_.dtype = dtype;
    const int64_t shape[4] = {b, h, s, d};
    std::copy(shape, shape + 4, view_.shape);
    const int64_t hnd[4] = {h * s * d, s * d, d, 1}, nhd[4] = {s * h * d, d, h * d, 1};
    std::copy_n(layout == Layout::hnd ? hnd : nhd, 4, view_.stride);
    bytes_.assign(static_cast<size_t>(b * h * s * d * elem()), poison);
    view_.data = bytes_.data();
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;

  int64_t elem() const { return view_.dtype == VCA_FP32 ? 4 : 2; }
  const vca_tensor& view() const { return view_; }
  std::vector<uint8_t>& bytes() { return bytes_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

  uint32_t bits(int64_t b, int64_t h, int64_t s, int64_t d) const {
    uint32_t x = 0;
    std::memcpy(&x, bytes_.data() + offset(b, h, s, d), static_cast<size_t>(elem()));
    return x;
  }
  float get(int64_t b, int64_t h, int64_t s, int64_t d) const {
    return decode(view_.dtype, bits(b, h, s, d));
  }
  void set(int64_t b, int64_t h, int64_t s, int64_t d, float x) {
    const uint32_t code = encode(view_.dtype, x);
    std::memcpy(bytes_.data() + offset(b, h, s, d), &code, static_cast<size_t>(elem()));
  }
  template <class F>
  void fill(F f) {  // float f(b, h, s, d)
    for (int64_t b = 0; b < view_.shape[0]; ++b)
      for (int64_t h = 0; h < view_.shape[1]; ++h)
        for (int64_t s = 0; s < view_.shape[2]; ++s)
          for (int64_t d = 0; d < view_.shape[3]; ++d) set(b, h, s, d, f(b, h, s, d));
  }
  void fill_normal(uint32_t seed, float scale = 1.0f, float offset = 0.0f) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    fill([&](int64_t, int64_t, int64_t, int64_t) { return offset + scale * normal(generator); });
  }

 private:
  size_t offset(int64_t b, int64_t h, int64_t s, int64_t d) const {
    const int64_t* t = view_.stride;
    return static_cast<size_t>((b * t[0] + h * t[1] + s * t[2] + d) * elem());
  }
  vca_tensor view_{};
  std::vector<uint8_t> bytes_;
};

// One call: seeded normal inputs, an output and an LSE buffer.
class Call {
 public:
  explicit Call(const Shape& s, int32_t dtype = VCA_BF16, Layout layout = Layout::hnd,
                uint32_t seed = 1)
      : shape(s),
        q(s.b, s.h_q, s.s_q, s.d, dtype, layout),
        k(s.b, s.h_kv, s.s_kv, s.d, dtype, layout),
        v(s.b, s.h_kv, s.s_kv, s.d, dtype, layout),
        o(s.b, s.h_q, s.s_q, s.d, dtype, layout) {
    q.fill_normal(seed);
    k.fill_normal(seed + 1);
    v.fill_normal(seed + 2);
    lse.assign(static_cast<size_t>(s.b * s.h_q * s.s_q), 777.0f);
    desc = vca_attn_desc_init();
    bind();
  }
  // A problem as text, the form of the benchmark: "b1 hq2 hkv1 sq70 skv90 d64 bf16 len81 nhd".
  explicit Call(const char* problem, uint32_t seed = 1)
      : Call(core::parse_problem(problem), FromText{}, seed) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // After a tensor was replaced.
  void bind() {
    desc.q = q.view();
    desc.k = k.view();
    desc.v = v.view();
    desc.o = o.view();
  }
  void output(int32_t dtype, Layout layout = Layout::hnd) {
    o = Tensor(shape.b, shape.h_q, shape.s_q, shape.d, dtype, layout);
    bind();
  }
  void with_lse() { desc.lse = lse.data(); }
  float lse_at(int64_t b, int64_t h, int64_t s) const {
    return lse[static_cast<size_t>((b * shape.h_q + h) * shape.s_q + s)];
  }
  vca_status run() { return vca_attn_run(&desc, nullptr, 0, nullptr); }

  Shape shape;
  Tensor q, k, v, o;
  std::vector<float> lse;
  std::vector<int32_t> kv_lens;
  vca_attn_desc desc;

 private:
  struct FromText {};  // so that braces mean a Shape
  Call(const core::ProblemText& p, FromText, uint32_t seed)
      : Call(Shape{p.b, p.h_q, p.h_kv, p.s_q, p.s_kv, p.d}, p.dtype,
             p.memory == core::ProblemMemory::nhd ? Layout::nhd : Layout::hnd, seed) {
    if (p.memory == core::ProblemMemory::fused)
      throw std::invalid_argument("q, k and v of a Call own their memory: not fused");
    if (!p.kv_len) return;
    kv_lens.assign(static_cast<size_t>(p.b), static_cast<int32_t>(*p.kv_len));
    desc.kv_lens = kv_lens.data();
  }
};

inline void expect_ok(vca_status status) { EXPECT_EQ(status, VCA_OK) << vca_last_error(); }

// A refusal that says what, got, allowed and hint as wanted: every word of `words` stands in the
// message.
inline void expect_refused(vca_status status, vca_status wanted,
                           const std::vector<std::string>& words) {
  EXPECT_EQ(status, wanted) << vca_last_error();
  const std::string message = vca_last_error();
  for (const std::string& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
}

struct Answer {
  std::vector<double> o;  // [b, h_q, s_q, d]
  std::vector<double> lse;
};

// FP64 attention on the stored inputs, written from the definition and from nothing else. valid(b,
// query, key).
inline Answer oracle(const Call& c,
                     const std::function<bool(int64_t, int64_t, int64_t)>& valid = nullptr) {
  const Shape& s = c.shape;
  const double scale = c.desc.has_scale ? c.desc.scale : 1.0 / std::sqrt(static_cast<double>(s.d));
  Answer a;
  std::vector<double> score(static_cast<size_t>(s.s_kv));
  for (int64_t b = 0; b < s.b; ++b)
    for (int64_t h = 0; h < s.h_q; ++h) {
      const int64_t kv = h / (s.h_q / s.h_kv);
      std::vector<double> k, v;
      for (int64_t n = 0; n < s.s_kv; ++n)
        for (int i = 0; i < s.d; ++i) {
          k.push_back(c.k.get(b, kv, n, i));
          v.push_back(c.v.get(b, kv, n, i));
        }
      for (int64_t row = 0; row < s.s_q; ++row) {
        double max = -std::numeric_limits<double>::infinity();
        for (int64_t n = 0; n < s.s_kv; ++n) {
          double dot = 0;
          for (int i = 0; i < s.d; ++i)
            dot += static_cast<double>(c.q.get(b, h, row, i)) * k[static_cast<size_t>(n * s.d + i)];
          score[static_cast<size_t>(n)] = valid == nullptr || valid(b, row, n)
                                              ? scale * dot
                                              : -std::numeric_limits<double>::infinity();
          max = std::max(max, score[static_cast<size_t>(n)]);
        }
        std::vector<double> o(static_cast<size_t>(s.d), 0.0);
        double sum = 0;
        for (int64_t n = 0; n < s.s_kv; ++n) {
          const double x = score[static_cast<size_t>(n)];
          if (std::isinf(x)) continue;
          const double p = std::exp(x - max);
          sum += p;
          for (int i = 0; i < s.d; ++i)
            o[static_cast<size_t>(i)] += p * v[static_cast<size_t>(n * s.d + i)];
        }
        for (double x : o) a.o.push_back(sum > 0 ? x / sum : 0.0);
        a.lse.push_back(sum > 0 ? max + std::log(sum) : -std::numeric_limits<double>::infinity());
      }
    }
  return a;
}

// sqrt(sum |o - o*|^2 / sum |o*|^2) over everything.
inline double rel_l2(const Call& c, const Answer& a) {
  double error = 0, norm = 0;
  size_t at = 0;
  for (int64_t b = 0; b < c.shape.b; ++b)
    for (int64_t h = 0; h < c.shape.h_q; ++h)
      for (int64_t s = 0; s < c.shape.s_q; ++s)
        for (int i = 0; i < c.shape.d; ++i, ++at) {
          const double diff = static_cast<double>(c.o.get(b, h, s, i)) - a.o[at];
          error += diff * diff;
          norm += a.o[at] * a.o[at];
        }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

inline double max_lse_error(const Call& c, const Answer& a) {
  double worst = 0;
  for (size_t i = 0; i < a.lse.size(); ++i)
    worst = std::max(worst, std::fabs(static_cast<double>(c.lse[i]) - a.lse[i]));
  return worst;
}

// O and LSE as the specification computes them for Target::cpu, in the output type, [b, h, s, d]
// order.
struct SpecAnswer {
  std::vector<uint32_t> o;
  std::vector<uint32_t> lse;
};

inline SpecAnswer specification(const Call& c) {
  const core::Request request = core::validate(&c.desc, core::Use::run);
  const spec::Problem& p = request.problem;
  SpecAnswer out;
  out.o.assign(static_cast<size_t>(p.batches * p.h_q * p.s_q * p.d), 0);
  out.lse.assign(static_cast<size_t>(p.batches * p.h_q * p.s_q), 0);
  for (size_t i = 0; i < p.subs.size(); ++i) {
    const spec::SubProblem& sub = p.subs[i];
    for (int64_t h = 0; h < p.h_q; ++h) {
      const int64_t kv_head = p.kv_head(h);
      spec::OwnedKv kv;
      spec::OwnedQ q;
      spec::allocate(*p.recipe, sub.n_valid(), sub.n_blocks(), p.d_pad, kv);
      const auto unit = static_cast<int64_t>(i) * p.h_kv + kv_head;
      spec::prepare_kv(p, sub, kv_head, core::order_unit(request, unit, nullptr).by_segment,
                       kv.view);
      spec::allocate(*p.recipe, sub.q_len, p.d_pad, request.lse(), q);
      spec::prepare_q(p, sub, h, kv.view.k_offset, q.view);
      spec::bind_mask(p, sub, h, q.view);
      std::vector<float> o(static_cast<size_t>(sub.q_len * p.d)),
          lse(static_cast<size_t>(sub.q_len));
      spec::RowOutputs rows;
      rows.o = o.data();
      if (request.lse()) rows.lse = lse.data();
      spec::attention_rows(p, kv.view, q.view, spec::Target::cpu, 0, sub.q_len, nullptr, rows);
      for (int64_t r = 0; r < sub.q_len; ++r) {
        const auto row = static_cast<size_t>((sub.batch * p.h_q + h) * p.s_q + sub.q_begin + r);
        for (int x = 0; x < p.d; ++x)
          out.o[row * static_cast<size_t>(p.d) + static_cast<size_t>(x)] =
              encode(c.desc.o.dtype, o[static_cast<size_t>(r * p.d + x)]);
        out.lse[row] = spec::float_bits(lse[static_cast<size_t>(r)]);
      }
    }
  }
  return out;
}

// First differing element, or nothing.
inline void expect_bits(const Call& c, const SpecAnswer& want, const std::string& what) {
  size_t at = 0;
  for (int64_t b = 0; b < c.shape.b; ++b)
    for (int64_t h = 0; h < c.shape.h_q; ++h)
      for (int64_t s = 0; s < c.shape.s_q; ++s)
        for (int i = 0; i < c.shape.d; ++i, ++at) {
          const uint32_t got = c.o.bits(b, h, s, i);
          if (got == want.o[at]) continue;
          ADD_FAILURE() << what << ": o[" << b << ", " << h << ", " << s << ", " << i << "] is "
                        << std::hex << got << ", the specification says " << want.o[at];
          return;
        }
  if (c.desc.lse == nullptr) return;
  for (size_t i = 0; i < want.lse.size(); ++i) {
    if (spec::float_bits(c.lse[i]) == want.lse[i]) continue;
    ADD_FAILURE() << what << ": lse[" << i << "] is " << c.lse[i] << ", the specification says "
                  << spec::float_from_bits(want.lse[i]);
    return;
  }
}

// The units that can run here.
inline std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
  for (const cpu::Isa isa : cpu::kIsas)
    if (cpu::isa_refusal(isa).empty()) names.push_back(std::string(cpu::isa_name(isa)).substr(4));
  return names;
}

// Forces a unit for a scope.
class ForcedIsa {
 public:
  explicit ForcedIsa(const std::string& name) { setenv("VCATTN_CPU_ISA", name.c_str(), 1); }
  ~ForcedIsa() { unsetenv("VCATTN_CPU_ISA"); }
};

inline void* aligned(std::vector<uint8_t>& buffer, size_t bytes) {
  buffer.assign(bytes + 64, 0);
  const auto at = reinterpret_cast<uintptr_t>(buffer.data());
  return buffer.data() + (64 - at % 64) % 64;
}

// A workspace of the size that a call asks for, zeros; `buffer` holds it and 64 bytes more.
struct Room {
  size_t bytes = 0;
  std::vector<uint8_t> buffer;
  uint8_t* data;
  explicit Room(const Call& c) {
    expect_ok(vca_attn_workspace(&c.desc, &bytes));
    data = static_cast<uint8_t*>(aligned(buffer, bytes));
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
};

}  // namespace vca::test
