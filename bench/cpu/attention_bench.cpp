// SPDX-License-Identifier: Apache-2.0
// The CPU backend against FP32 attention with the best BLAS at hand (OpenBLAS), on the same cores:
// B 1, H 2, S 8192, head_dim 128, non-causal. CPU time of the process, so that a busy machine
// disturbs the ratio less than the clock would. Run by scripts/bench_cpu.py, which keeps the best
// of several repetitions.
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <immintrin.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "vca/vca.h"

extern "C" void openblas_set_num_threads(int);
extern "C" char* openblas_get_corename(void);

namespace {

constexpr int64_t kHeads = 2, kTokens = 8192, kDim = 128;

struct Inputs {
  std::vector<float> q, k, v, o;
  Inputs() {
    std::mt19937 g(1);
    std::normal_distribution<float> normal;
    for (std::vector<float>* x : {&q, &k, &v}) {
      x->resize(static_cast<size_t>(kHeads * kTokens * kDim));
      for (float& value : *x) value = normal(g);
    }
    o.resize(q.size());
  }
};

Inputs& inputs() {
  static Inputs all;
  return all;
}

// x[0, n) <- exp(x - max), returns the sum. 2^-21 relative; written for the vectoriser, so that the
// baseline is not held back by a scalar exponential.
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) float exp_row(
    float* x, int64_t n, float max) {
  float sum = 0.0f;
  float part[16] = {};
  for (int64_t i = 0; i < n; i += 16)
    for (int lane = 0; lane < 16; ++lane) {
      float t = (x[i + lane] - max) * 1.4426950408889634f;
      t = t < -126.0f ? -126.0f : t;
      const float shifted = t + 12582912.0f;
      const float f = t - (shifted - 12582912.0f);
      float p = 0x1.5bba14p-10f;
      p = p * f + 0x1.3cea88p-7f;
      p = p * f + 0x1.c6b752p-5f;
      p = p * f + 0x1.ebf9bcp-3f;
      p = p * f + 0x1.62e42ap-1f;
      p = p * f + 1.0f;
      uint32_t bits, exponent;
      std::memcpy(&bits, &p, 4);
      std::memcpy(&exponent, &shifted, 4);
      bits += (exponent - 0x4B400000u) << 23;
      float e;
      std::memcpy(&e, &bits, 4);
      x[i + lane] = e;
      part[lane] += e;
    }
  for (const float s : part) sum += s;
  return sum;
}

// O = softmax(Q K^T / sqrt(d)) V, 256 queries at a time so that the scores stay in cache.
void blas_attention(Inputs& in) {
  constexpr int64_t kRows = 256;
  std::vector<float> s(static_cast<size_t>(kRows * kTokens));
  const float scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  for (int64_t h = 0; h < kHeads; ++h) {
    const float* k = in.k.data() + h * kTokens * kDim;
    const float* v = in.v.data() + h * kTokens * kDim;
    for (int64_t row = 0; row < kTokens; row += kRows) {
      const float* q = in.q.data() + (h * kTokens + row) * kDim;
      float* o = in.o.data() + (h * kTokens + row) * kDim;
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kRows, kTokens, kDim, scale, q, kDim, k,
                  kDim, 0.0f, s.data(), kTokens);
      float inverse[kRows];
      for (int64_t i = 0; i < kRows; ++i) {
        float* x = s.data() + i * kTokens;
        float max = x[0];
        for (int64_t n = 1; n < kTokens; ++n) max = x[n] > max ? x[n] : max;
        inverse[i] = 1.0f / exp_row(x, kTokens, max);
      }
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kRows, kDim, kTokens, 1.0f, s.data(),
                  kTokens, v, kDim, 0.0f, o, kDim);
      for (int64_t i = 0; i < kRows; ++i)
        for (int64_t c = 0; c < kDim; ++c) o[i * kDim + c] *= inverse[i];
    }
  }
}

void fp32_blas(benchmark::State& state) {
  openblas_set_num_threads(1);
  Inputs& in = inputs();
  for (auto _ : state) {
    blas_attention(in);
    benchmark::DoNotOptimize(in.o.data());
  }
  state.SetLabel(std::string("OpenBLAS ") + openblas_get_corename());
}

// `prepared`: attend only, on operands made once.
void backend(benchmark::State& state, const char* isa, const char* recipe, bool prepared) {
  setenv("VCATTN_CPU_ISA", isa, 1);
  Inputs& in = inputs();
  vca_attn_desc d = vca_attn_desc_init();
  const auto view = [](std::vector<float>& x) {
    return vca_tensor{x.data(),
                      VCA_FP32,
                      0,
                      {1, kHeads, kTokens, kDim},
                      {kHeads * kTokens * kDim, kTokens * kDim, kDim, 1}};
  };
  d.q = view(in.q);
  d.k = view(in.k);
  d.v = view(in.v);
  d.o = view(in.o);
  d.num_threads = 1;
  if (vca_recipe_parse(recipe, &d.recipe, &d.hadamard) != VCA_OK)
    return state.SkipWithError(vca_last_error());
  size_t bytes = 0;
  if (vca_attn_workspace(&d, &bytes) != VCA_OK) return state.SkipWithError(vca_last_error());
  void* const workspace = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (prepared && vca_attn_prepare(&d, workspace, bytes, nullptr) != VCA_OK)
    state.SkipWithError(vca_last_error());
  for (auto _ : state) {
    const vca_status status = prepared ? vca_attn_attend(&d, workspace, bytes, nullptr)
                                       : vca_attn_run(&d, workspace, bytes, nullptr);
    if (status != VCA_OK) state.SkipWithError(vca_last_error());
  }
  std::free(workspace);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("fp32_blas", fp32_blas);
  for (const char* isa : {"avx512", "avx2", "portable"})
    for (const char* recipe : {"vc8", "vc8-turbo", "sage2", "vc8-hq", "vc4", "vc4-int8qk"}) {
      if (std::string(isa) == "portable" && std::string(recipe) != "vc8") continue;
      const std::string name = std::string(recipe) + "/" + isa;
      benchmark::RegisterBenchmark((name + "/attend").c_str(),
                                   [=](benchmark::State& s) { backend(s, isa, recipe, true); });
      if (std::string(recipe) == "vc8")
        benchmark::RegisterBenchmark((name + "/run").c_str(),
                                     [=](benchmark::State& s) { backend(s, isa, recipe, false); });
    }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
