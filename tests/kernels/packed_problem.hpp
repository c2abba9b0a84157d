// SPDX-License-Identifier: Apache-2.0
// A random problem prepared by the specification and packed into the operands a kernel reads, on
// the host. Emulator tests run on the buffers as they are; device tests copy them.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/common/params.hpp"
#include "spec/arith.hpp"
#include "spec/attention.hpp"
#include "spec/codes.hpp"
#include "spec/tiles.hpp"

namespace vca::tests {

// 1 KiB aligned bytes: swizzled tiles must start at such addresses once they are in shared memory,
// and bulk copies want 16-byte aligned sources.
struct AlignedBytes {
  std::vector<uint8_t> raw;
  uint8_t* data = nullptr;
  size_t size = 0;
  void resize(size_t n) {
    raw.assign(n + 1024, 0);
    data = raw.data() + (1024 - reinterpret_cast<uintptr_t>(raw.data()) % 1024) % 1024;
    size = n;
  }
};

struct PackedProblem {
  spec::Problem problem;
  std::vector<float> q_values, k_values, v_values;
  AlignedBytes q_tiles, k_tiles, v_tiles, mu_tiles;
  std::vector<float> q_unit, k_scale, s_v, qk_offset;
  std::vector<int32_t> exponent, block_valid;
  std::vector<kernels::SubInfo> subs;
  int32_t max_q_tiles = 0;
  std::vector<std::unique_ptr<spec::OwnedKv>> kv;  // [sub * h_kv]
  std::vector<std::unique_ptr<spec::OwnedQ>> q;    // [sub * h_q]

  // Parameters that point to host memory; `o` and `lse` are the caller's.
  kernels::AttentionParams params(void* o, float* lse, kernels::OutType type) const {
    kernels::AttentionParams p{};
    p.q_tiles = q_tiles.data;
    p.k_tiles = k_tiles.data;
    p.v_tiles = v_tiles.data;
    p.mu_tiles = mu_tiles.data;
    p.q_unit = q_unit.data();
    p.k_scale = k_scale.data();
    p.s_v = s_v.data();
    p.block_valid = block_valid.data();
    p.exponent = exponent.data();
    p.qk_offset = qk_offset.data();
    p.subs = subs.data();
    p.o = o;
    p.o_stride_s = problem.d;
    p.o_stride_h = problem.s_q * problem.d;
    p.o_stride_b = problem.h_q * p.o_stride_h;
    p.lse = lse;
    p.lse_s = problem.s_q;
    p.n_subs = static_cast<int32_t>(subs.size());
    p.h_q = static_cast<int32_t>(problem.h_q);
    p.h_kv = static_cast<int32_t>(problem.h_kv);
    p.max_q_tiles = max_q_tiles;
    p.head_dim = problem.d;
    p.o_type = type;
    p.top = problem.recipe->top;
    p.log_p_max = static_cast<float>(std::log(spec::p_of_maximum(*problem.recipe)));
    for (uint32_t k = 0; k < 128; ++k) p.exp2_fraction[k] = spec::exp2_code_fraction(k);
    return p;
  }
};

// Counter-based uniform and normal numbers: the same on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double normal() {
    const double u = uniform() + 0x1p-54;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * uniform());
  }

 private:
  uint64_t state_;
};

struct ProblemShape {
  int64_t b = 1, h_q = 1, h_kv = 1, s_q = 128, s_kv = 128;
  int d = 128;
  double logit_std = 2.0;  // of scale * q.k: how peaked the rows are
  double v_offset = 0.5;   // common part of V, so that means matter
  // Code units by which block maxima rise from block to block: on average over the rows, of which
  // each has 0.75 to 1.25 times as much; every fourth row falls instead. Exact but for FP32's
  // rounding where logit_std is 0.
  double ramp = 0.0;
  bool equal_keys = false;       // all keys are the first
  std::vector<int64_t> kv_lens;  // one a batch; empty: all
  std::vector<int64_t>
      segments;  // lengths that add up to s_kv; empty: one segment. Not with kv_lens
};

void make_problem(const ProblemShape& shape, const spec::Recipe& recipe, uint64_t seed,
                  PackedProblem& out);

}  // namespace vca::tests
