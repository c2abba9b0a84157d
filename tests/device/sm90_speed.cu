// SPDX-License-Identifier: Apache-2.0
// Kernel-only speed of the sm_90a kernels on model shapes: random T128 operands made on the device
// (Gaussian INT8 or E4M3 queries and keys, Gaussian E4M3 values, non-zero means, every indicator in
// place), sustained launches, median of single launches.
//
//   device_sm90_speed [repeats] [profile | one] [recipe...]    without names: vc8-turbo, vc8
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/sm90/launch.hpp"
#include "spec/arith.hpp"
#include "spec/attention.hpp"

namespace {

using namespace vca;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("CUDA: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}

__device__ float gauss(uint64_t i, uint32_t seed) {
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  const float u = (static_cast<uint32_t>(z) + 0.5f) * 2.3283064e-10f;
  return sqrtf(-2.0f * logf(u)) * cospif(2.0f * static_cast<float>(z >> 40) * 5.9604645e-8f);
}

__global__ void fill_int8(uint8_t* at, uint64_t n, uint32_t seed, float sigma) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n;
       i += uint64_t{gridDim.x} * blockDim.x)
    at[i] = static_cast<uint8_t>(
        static_cast<int8_t>(fminf(fmaxf(rintf(gauss(i, seed) * sigma), -127.0f), 127.0f)));
}

// E4M3 code of x·2^6, truncated: codes around 64, well inside the range.
__device__ uint8_t e4m3_code(float x) {
  const int exponent = static_cast<int>(floorf(log2f(fabsf(x) + 1e-6f)));
  const int biased = min(max(exponent + 13, 1), 14);
  const int mantissa =
      static_cast<int>((fabsf(x) / exp2f(static_cast<float>(exponent)) - 1.0f) * 8.0f) & 7;
  return static_cast<uint8_t>((x < 0 ? 0x80 : 0) | biased << 3 | mantissa);
}

__global__ void fill_e4m3(uint8_t* at, uint64_t n, uint32_t seed) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n;
       i += uint64_t{gridDim.x} * blockDim.x)
    at[i] = e4m3_code(gauss(i, seed));
}

// V tiles: `rows` value rows of random E4M3 codes, then 8 indicator rows; block j of a head has its
// ones in row j mod 8.
__global__ void fill_v(uint8_t* at, uint64_t n_tiles, int rows, int n_blocks, uint32_t seed) {
  const uint64_t tile_bytes = uint64_t(rows + 8) * 128;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n_tiles * tile_bytes;
       i += uint64_t{gridDim.x} * blockDim.x) {
    const uint64_t tile = i / tile_bytes;
    const int row = static_cast<int>(i % tile_bytes / 128);
    if (row >= rows) {
      at[i] = row - rows == static_cast<int>(tile % n_blocks % 8) ? 0x38 : 0;
      continue;
    }
    at[i] = e4m3_code(gauss(i, seed));
  }
}

__global__ void fill_f32(float* at, uint64_t n, uint32_t seed, float mean, float sigma, bool bf16) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n;
       i += uint64_t{gridDim.x} * blockDim.x) {
    const float x = mean + sigma * gauss(i, seed);
    at[i] = bf16 ? __uint_as_float(__float_as_uint(x) & 0xFFFF0000u) : x;
  }
}

template <class T>
T* allocate(uint64_t n) {
  T* at = nullptr;
  check(cudaMalloc(&at, n * sizeof(T)), "cudaMalloc");
  return at;
}

void time_shape(const char* label, int heads, int64_t s, int d, int repeats,
                const std::vector<const char*>& recipes) {
  const int64_t blocks = (s + 127) / 128, tiles = heads * blocks, groups = (blocks + 7) / 8;
  auto* q = allocate<uint8_t>(tiles * 128 * d);
  auto* k = allocate<uint8_t>(tiles * 128 * d);
  auto* v = allocate<uint8_t>(tiles * (d + 8) * 128);
  auto* mu = allocate<float>(heads * groups * d * 8);
  auto* unit = allocate<float>(tiles * 64);
  auto* k_scale = allocate<float>(tiles * 4);
  auto* s_v = allocate<float>(int64_t{heads} * d);
  auto* exponent = allocate<int32_t>(heads);
  auto* o = allocate<uint16_t>(heads * s * d);
  fill_v<<<2048, 256>>>(v, tiles, d, static_cast<int>(blocks), 3);
  fill_f32<<<512, 256>>>(mu, uint64_t(heads) * groups * d * 8, 4, 0.0f, 20.0f, true);
  fill_f32<<<512, 256>>>(k_scale, tiles * 4, 6, 1.0f, 0.05f, false);
  fill_f32<<<16, 256>>>(s_v, uint64_t(heads) * d, 7, 1.0f, 0.05f, false);
  check(cudaMemset(exponent, 0, heads * 4), "memset");
  kernels::SubInfo sub{};
  sub.q_len = s;
  sub.n_q_tiles = static_cast<int32_t>(blocks);
  sub.n_blocks = static_cast<int32_t>(blocks);
  auto* subs = allocate<kernels::SubInfo>(1);
  check(cudaMemcpy(subs, &sub, sizeof sub, cudaMemcpyHostToDevice), "copy");
  std::vector<int32_t> valid(static_cast<size_t>(blocks), 128);
  valid.back() = static_cast<int32_t>(s - (blocks - 1) * 128);
  auto* block_valid = allocate<int32_t>(blocks);
  check(cudaMemcpy(block_valid, valid.data(), blocks * 4, cudaMemcpyHostToDevice), "copy");
  for (const char* name : recipes) {
    const spec::Recipe& recipe = *spec::find_recipe(name);
    // Dots of INT8 (sigma 30) and of E4M3 (sigma 64) queries and keys to logits of standard
    // deviation about 2.
    const float unit_mean = recipe.integer_scores() ? 2.3e-3f : 5.05e-4f;
    fill_f32<<<512, 256>>>(unit, tiles * 64, 5, unit_mean, 0.04f * unit_mean, false);
    for (uint8_t* codes : {q, k}) {
      if (recipe.integer_scores())
        fill_int8<<<2048, 256>>>(codes, tiles * 128 * d, codes == q ? 1 : 2, 30.0f);
      else
        fill_e4m3<<<2048, 256>>>(codes, tiles * 128 * d, codes == q ? 1 : 2);
    }
    kernels::AttentionParams p{};
    p.q_tiles = q;
    p.k_tiles = k;
    p.v_tiles = v;
    p.mu_tiles = reinterpret_cast<uint8_t*>(mu);
    p.q_unit = unit;
    p.k_scale = k_scale;
    p.s_v = s_v;
    p.block_valid = block_valid;
    p.exponent = exponent;
    p.subs = subs;
    p.o = o;
    p.o_stride_s = d;
    p.o_stride_h = s * d;
    p.o_stride_b = heads * s * d;
    p.n_subs = 1;
    p.h_q = p.h_kv = heads;
    p.max_q_tiles = sub.n_q_tiles;
    p.head_dim = d;
    p.o_type = kernels::OutType::bf16;
    p.top = recipe.top;
    for (uint32_t i = 0; i < 128; ++i) p.exp2_fraction[i] = spec::exp2_code_fraction(i);
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    std::vector<float> ms;
    for (int i = 0; i < repeats + 3; ++i) {
      check(cudaEventRecord(begin), "record");
      check(kernels::sm90::launch_attention(recipe, d, p, nullptr), "launch");
      check(cudaEventRecord(end), "record");
      check(cudaEventSynchronize(end), "kernel");
      float t = 0.0f;
      check(cudaEventElapsedTime(&t, begin, end), "time");
      if (i >= 3) ms.push_back(t);
    }
    std::sort(ms.begin(), ms.end());
    const double flop = 4.0 * double(s) * double(s) * d * heads;
    std::printf("%-16s %-10s median %8.3f ms  min %8.3f  max %8.3f  %7.1f TFLOP/s\n", label, name,
                ms[ms.size() / 2], ms.front(), ms.back(), flop / ms[ms.size() / 2] * 1e-9);
  }
  for (void* at : {(void*)q, (void*)k, (void*)v, (void*)mu, (void*)unit, (void*)k_scale, (void*)s_v,
                   (void*)exponent, (void*)o, (void*)subs, (void*)block_valid})
    cudaFree(at);
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 30;
  bool profile = false, one = false;
  std::vector<const char*> recipes;
  for (int i = 2; i < argc; ++i) {
    profile = profile || std::strcmp(argv[i], "profile") == 0;
    one = one || spec::find_recipe(argv[i]) == nullptr;
    if (spec::find_recipe(argv[i]) != nullptr) recipes.push_back(argv[i]);
  }
  if (recipes.empty()) recipes = {"vc8-turbo", "vc8"};
  if (profile) {  // one short shape, for a profiler
    time_shape("profile", 2, 75600, 128, repeats, recipes);
    return 0;
  }
  time_shape("wan2.2-720p", 40, 75600, 128, repeats, recipes);
  if (one) return 0;
  time_shape("longcat-480p", 32, 37440, 128, repeats, recipes);
  time_shape("ulysses8-wan", 5, 75600, 128, repeats, recipes);
  return 0;
}
