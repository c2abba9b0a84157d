// SPDX-License-Identifier: Apache-2.0
// On a Hopper GPU: O of the shipped kernels against the specification under the sm90 chip model,
// bit for bit, and their codes, recovered through one-hot values. Prints one line a case; exit code
// 1 on any difference.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/one_hot_values.hpp"
#include "kernels/sm90/launch.hpp"
#include "kernels/sm90/softmax_exp.cuh"
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
  int64_t different = 0, total = 0, different_lse = 0;
  double max_relative = 0.0, max_lse = 0.0;
  bool equal() const { return different == 0 && different_lse == 0; }
};

struct Outputs {
  std::vector<float> o, lse;
};

// What the specification gives, on all cores: this is where the time of this program goes. Heads
// without a key are left out.
Outputs specified(const tests::PackedProblem& host) {
  constexpr int64_t kRows = 16;
  const spec::Problem& p = host.problem;
  const auto rows = static_cast<size_t>(p.batches * p.h_q * p.s_q);
  Outputs want{std::vector<float>(rows * static_cast<size_t>(p.d)), std::vector<float>(rows)};
  const int64_t parts = (p.s_q + kRows - 1) / kRows;
  const int64_t tasks = static_cast<int64_t>(p.subs.size()) * p.h_q * parts;
#pragma omp parallel for schedule(dynamic)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t i = task / (p.h_q * parts), h = task / parts % p.h_q, row = task % parts * kRows;
    const spec::SubProblem& sub = p.subs[static_cast<size_t>(i)];
    if (sub.n_blocks() == 0) continue;
    const int64_t at = (sub.batch * p.h_q + h) * p.s_q + row;
    spec::RowOutputs part;
    part.o = want.o.data() + at * p.d;
    part.lse = want.lse.data() + at;
    spec::attention_rows(p, host.kv[static_cast<size_t>(i * p.h_kv + p.kv_head(h))]->view,
                         host.q[static_cast<size_t>(i * p.h_q + h)]->view, spec::Target::sm90, row,
                         std::min(kRows, p.s_q - row), nullptr, part);
  }
  return want;
}

Counts compare(const tests::PackedProblem& host, const std::vector<float>& o,
               const std::vector<float>& lse) {
  const spec::Problem& p = host.problem;
  Counts counts;
  const Outputs all = specified(host);
  for (size_t i = 0; i < p.subs.size(); ++i)
    for (int64_t h = 0; h < p.h_q; ++h) {
      if (p.subs[i].n_blocks() == 0) continue;
      const auto& q = host.q[i * static_cast<size_t>(p.h_q) + static_cast<size_t>(h)]->view;
      const size_t base = (static_cast<size_t>(p.subs[i].batch) * p.h_q + h) * p.s_q;
      const float *want = all.o.data() + base * p.d, *want_lse = all.lse.data() + base;
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
        // m's part, ln(l/p_max) and the offset added in FP32: four roundings and a logarithm, each
        // relative to the sum of the three magnitudes at most.
        const double error = std::fabs(double{lse[base + row]} - want_lse[row]);
        const double offset = std::fabs(double{q.qk_offset[row]});
        counts.max_lse = std::max(counts.max_lse, error);
        counts.different_lse +=
            !(error <= 6 * 0x1p-24 * (std::fabs(want_lse[row]) + 2 * offset + 16));
      }
    }
  return counts;
}

// The operands of a problem on the device. `far`: every tile lies 300,000 tiles behind the start of
// its operand, beyond 2^31 elements and 2^32 bytes for head_dim 128.
class OnDevice {
 public:
  explicit OnDevice(const tests::PackedProblem& host, bool far = false) {
    const int d = host.problem.d_pad;
    const int64_t shift = far ? 300000 : 0;
    params = host.params(nullptr, nullptr, kernels::OutType::fp32);
    params.q_tiles = put(host.q_tiles.data, host.q_tiles.size, shift * 128 * d);
    params.k_tiles = put(host.k_tiles.data, host.k_tiles.size, shift * 128 * d);
    params.v_tiles = put(host.v_tiles.data, host.v_tiles.size, shift * (d + 8) * 128);
    params.mu_tiles = put(host.mu_tiles.data, host.mu_tiles.size, shift * d * 32);
    params.q_unit = put(host.q_unit.data(), host.q_unit.size(), shift * 64);
    params.k_scale = put(host.k_scale.data(), host.k_scale.size(), shift * 4);
    params.s_v = put(host.s_v.data(), host.s_v.size());
    params.block_valid = put(host.block_valid.data(), host.block_valid.size(), shift);
    params.exponent = put(host.exponent.data(), host.exponent.size());
    params.qk_offset = put(host.qk_offset.data(), host.qk_offset.size(), shift * 128);
    std::vector<kernels::SubInfo> subs = host.subs;
    for (kernels::SubInfo& sub : subs) {
      sub.q_tile_base += shift;
      sub.kv_block_base += shift;
      sub.mu_group_base += shift;
      sub.valid_base += shift;
    }
    params.subs = put(subs.data(), subs.size());
  }
  ~OnDevice() {
    for (void* at : owned_) cudaFree(at);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  // A copy of n elements, `before` elements into memory of its own; returns the start of that
  // memory.
  template <class T>
  T* put(const T* host, size_t n, int64_t before = 0) {
    T* at = nullptr;
    const auto gap = static_cast<size_t>(before);
    check(cudaMalloc(&at, (gap + std::max<size_t>(n, 1)) * sizeof(T)), "cudaMalloc");
    owned_.push_back(at);
    if (n > 0) check(cudaMemcpy(at + gap, host, n * sizeof(T), cudaMemcpyHostToDevice), "copy in");
    return at;
  }

  kernels::AttentionParams params;

 private:
  std::vector<void*> owned_;
};

// Runs the kernel with outputs of its own, poisoned: every element must be written. `gap`: elements
// between two heads of O beyond their rows.
Outputs attend(const tests::PackedProblem& host, OnDevice& device, int64_t gap = 0) {
  const spec::Problem& p = host.problem;
  const auto heads = static_cast<size_t>(p.batches * p.h_q);
  const auto head_o = static_cast<size_t>(p.s_q * p.d);
  Outputs out{std::vector<float>(heads * head_o, 12345.0f),
              std::vector<float>(heads * static_cast<size_t>(p.s_q), 12345.0f)};
  kernels::AttentionParams& params = device.params;
  const size_t pitch = head_o + static_cast<size_t>(gap);
  float* o = nullptr;
  check(cudaMalloc(&o, (heads * pitch + 1) * 4), "cudaMalloc");
  const auto copy_o = [&](bool back) {
    if (gap == 0) {
      check(cudaMemcpy(back ? out.o.data() : o, back ? o : out.o.data(), out.o.size() * 4,
                       cudaMemcpyDefault),
            "copy O");
      return;
    }
    for (size_t h = 0; h < heads; ++h) {
      float *at = o + h * pitch, *mine = out.o.data() + h * head_o;
      check(cudaMemcpy(back ? mine : at, back ? at : mine, head_o * 4, cudaMemcpyDefault),
            "copy O");
    }
  };
  copy_o(false);
  params.o = o;
  params.o_stride_h = static_cast<int64_t>(pitch);
  params.o_stride_b = static_cast<int64_t>(pitch) * p.h_q;
  params.lse = device.put(out.lse.data(), out.lse.size());
  check(kernels::sm90::launch_attention(*p.recipe, p.d_pad, params, nullptr), "launch");
  check(cudaDeviceSynchronize(), "kernel");
  copy_o(true);
  check(cudaMemcpy(out.lse.data(), params.lse, out.lse.size() * 4, cudaMemcpyDeviceToHost), "LSE");
  cudaFree(o);
  return out;
}

bool run_case(const char* recipe_name, const tests::ProblemShape& shape, uint64_t seed,
              bool far = false) {
  const spec::Recipe& recipe = *spec::find_recipe(recipe_name);
  tests::PackedProblem host;
  tests::make_problem(shape, recipe, seed, host);
  OnDevice device(host, far);
  const Outputs got = attend(host, device, far ? (int64_t{1} << 31) + 64 : 0);
  const Counts c = compare(host, got.o, got.lse);
  std::printf(
      "%-10s b%lld hq%lld hkv%lld sq%lld skv%lld d%d std%.1f ramp%.0f%s: %lld of %lld differ, max "
      "%.2e of "
      "the row, lse %.1e %s\n",
      recipe_name, (long long)shape.b, (long long)shape.h_q, (long long)shape.h_kv,
      (long long)shape.s_q, (long long)shape.s_kv, shape.d, shape.logit_std, shape.ramp,
      far ? " beyond 2^31 elements" : "", (long long)c.different, (long long)c.total,
      c.max_relative, c.max_lse, c.equal() ? "equal" : "DIFFERENT");
  return c.equal();
}

// 35,000 batches of two heads, all of them the operands of one: every O must be that one's.
bool run_many_heads(const char* recipe_name) {
  constexpr int64_t kCopies = 35000;
  tests::ProblemShape shape;
  shape.h_q = shape.h_kv = 2;
  shape.s_q = 3;
  shape.s_kv = 150;
  shape.d = 64;
  tests::PackedProblem host;
  tests::make_problem(shape, *spec::find_recipe(recipe_name), 7, host);
  OnDevice one(host);
  const Outputs want = attend(host, one);
  bool ok = compare(host, want.o, want.lse).equal();
  const auto repeat = [](auto& x) {
    const auto once = x;
    for (int64_t i = 1; i < kCopies; ++i) x.insert(x.end(), once.begin(), once.end());
  };
  repeat(host.subs);
  repeat(host.s_v);
  repeat(host.exponent);
  for (int64_t i = 0; i < kCopies; ++i) host.subs[static_cast<size_t>(i)].batch = i;
  host.problem.batches = kCopies;
  OnDevice many(host);
  const Outputs got = attend(host, many);
  int64_t bad = 0;
  for (size_t i = 0; i < got.o.size(); i += want.o.size())
    bad += std::memcmp(got.o.data() + i, want.o.data(), want.o.size() * 4) != 0;
  ok = ok && bad == 0;
  std::printf("%-10s %lld heads: %lld batches differ %s\n", recipe_name, (long long)kCopies * 2,
              (long long)bad, ok ? "equal" : "DIFFERENT");
  return ok;
}

bool run_codes(const char* recipe_name) {
  int64_t compared = 0;
  std::string bad;
  for (const int d : {64, 128})
    for (const int64_t keys : {1, 77, 128})
      for (const double logit_std : {1.0, 4.0, 20.0}) {
        tests::ProblemShape shape;
        shape.h_q = shape.h_kv = 3;
        shape.s_q = 500;
        shape.s_kv = keys;
        shape.d = d;
        shape.logit_std = logit_std;
        tests::PackedProblem host;
        tests::make_problem(shape, *spec::find_recipe(recipe_name), 11, host);
        for (int first = 0; first < keys && bad.empty(); first += d) {
          tests::set_one_hot_values(host, first);
          OnDevice device(host);
          bad = tests::compare_codes(host, attend(host, device).o.data(), first, &compared);
        }
      }
  std::printf("%-10s codes through one-hot values: %lld %s\n", recipe_name, (long long)compared,
              bad.empty() ? "equal" : bad.c_str());
  return bad.empty();
}

// Scores over the whole range of the exponential, and beyond at both ends.
__host__ __device__ float sweep_score(int i) { return 90.0f - 0.0011f * static_cast<float>(i); }
__host__ __device__ float sweep_code(int i) { return -4.0f + 0.0625f * static_cast<float>(i); }
constexpr float kSweepFactor = 0x1.2p-10f, kSweepOffset = 0.9f;

__global__ void conversions(float* ex2, uint32_t* codes, float* exponential, int n_ex2, int n_codes,
                            int n_exponential) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n_ex2)
    ex2[i] = ptx::ex2_approx_ftz(ptx::mul_rn(-0.0625f * static_cast<float>(i), 0.125f));
  if (i < n_codes) codes[i] = ptx::cvt_pack_sat_u8x4_f32(sweep_code(i), -1e6f, 126.0f, 0.5f);
  if (i < n_exponential)
    exponential[i] = kernels::sm90::exp2_code(sweep_score(i), kSweepFactor, kSweepOffset);
}

// F2IP on a sweep with ties, and the exponential of the real-exponential recipes, must be the
// specification's; how far ex2.approx is from the table of rescale factors is only reported.
bool run_conversions() {
  constexpr int kEx2 = 16129, kCodes = 2112, kExponential = 1 << 20;
  std::vector<float> ex2(kEx2), exponential(kExponential);
  std::vector<uint32_t> codes(kCodes);
  float* d_ex2 = to_device(ex2.data(), kEx2);
  float* d_exponential = to_device(exponential.data(), kExponential);
  uint32_t* d_codes = to_device(codes.data(), kCodes);
  conversions<<<kExponential / 256, 256>>>(d_ex2, d_codes, d_exponential, kEx2, kCodes,
                                           kExponential);
  check(cudaDeviceSynchronize(), "conversions");
  check(cudaMemcpy(ex2.data(), d_ex2, kEx2 * 4, cudaMemcpyDeviceToHost), "copy out");
  check(cudaMemcpy(codes.data(), d_codes, kCodes * 4, cudaMemcpyDeviceToHost), "copy out");
  check(cudaMemcpy(exponential.data(), d_exponential, kExponential * 4, cudaMemcpyDeviceToHost),
        "copy out");
  int bad_ex2 = 0, bad_codes = 0, bad_exponential = 0;
  for (int i = 0; i < kEx2; ++i) {
    const float want = spec::pow2_code(-0.0625f * static_cast<float>(i));
    bad_ex2 += std::memcmp(&want, &ex2[i], 4) != 0;
  }
  for (int i = 0; i < kCodes; ++i)
    bad_codes += codes[i] != (spec::f2ip_code(sweep_code(i)) | 126u << 16);
  for (int i = 0; i < kExponential; ++i) {
    const float want = spec::exp2_code(sweep_score(i), kSweepFactor, kSweepOffset);
    bad_exponential += std::memcmp(&want, &exponential[i], 4) != 0;
  }
  for (void* at : {(void*)d_ex2, (void*)d_codes, (void*)d_exponential}) cudaFree(at);
  std::printf("note: ex2.approx, uncut: %d of %d differ from the table\n", bad_ex2, kEx2);
  std::printf("F2IP: %d of %d differ; exp2_code: %d of %d differ\n", bad_codes, kCodes,
              bad_exponential, kExponential);
  return bad_codes == 0 && bad_exponential == 0;
}

// Block maxima that move by about as much as O's reference tolerates (128 code units) and as the
// largest factor that is not 0 (1,008); scores beyond 2^23 code units, with an exponent e > 0 (B6);
// equal keys.
bool run_edges(const char* recipe) {
  bool ok = true;
  for (const double ramp : {3.0, 64.0, 128.0, 1008.0, -128.0, -1008.0, 1e7}) {
    tests::ProblemShape s;
    s.s_q = 260;
    s.s_kv = 1300;
    s.ramp = ramp;
    s.logit_std = ramp == 3.0 ? 0.5 : 0.0;
    ok = run_case(recipe, s, 9) && ok;
  }
  tests::ProblemShape s;
  s.s_q = 260;
  s.s_kv = 1300;
  s.logit_std = 3e6;
  ok = run_case(recipe, s, 10) && ok;
  s.logit_std = 2.0;
  s.equal_keys = true;
  return run_case(recipe, s, 12) && ok;
}

bool run_recipe(const char* recipe) {
  bool ok = run_codes(recipe);
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
    s.logit_std = 60.0;
    s.segments = {257, 1, 1042};  // tail blocks inside a head
    ok = run_case(recipe, s, 6) && ok;
    s.segments.clear();
    s.s_q = 1;
    s.s_kv = 1;
    ok = run_case(recipe, s, 4) && ok;
  }
  ok = run_edges(recipe) && ok;
  tests::ProblemShape s;
  s.b = 3;
  s.s_q = 400;
  s.s_kv = 2500;
  s.h_q = 30;
  s.h_kv = 30;
  s.kv_lens = {2500, 0, 1031};
  ok = run_case(recipe, s, 5) && ok;
  ok = run_many_heads(recipe) && ok;
  s = {};
  s.h_q = 2;
  s.s_q = 140;
  s.s_kv = 1100;
  return run_case(recipe, s, 8, true) && ok;
}

}  // namespace

// No argument: everything; else the named recipes and "conversions".
int main(int argc, char** argv) {
  const auto wanted = [&](const char* part) {
    return argc == 1 || std::any_of(argv + 1, argv + argc,
                                    [part](const char* a) { return std::strcmp(a, part) == 0; });
  };
  bool ok = !wanted("conversions") || run_conversions();
  for (const char* recipe : {"vc8", "vc8-turbo", "vc8-paper", "vc8-exp", "sage2", "fp8"})
    if (wanted(recipe)) ok = run_recipe(recipe) && ok;
  std::printf(ok ? "all equal\n" : "differences\n");
  return ok ? 0 : 1;
}
