// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/bench_inputs.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>
#include <numeric>
#include <utility>

#include "core/parallel.hpp"
#include "spec/attention.hpp"
#include "spec/codes.hpp"
#include "spec/diagnose.hpp"
#include "spec/problem.hpp"

namespace vca::tools {
namespace {

using core::ProblemText;

constexpr int64_t kQuantiles = 65536;
constexpr int64_t kSampledHeads = 4, kSampledRows = 8;
constexpr int64_t kChunkRows = 256;  // rows that one thread fills at a time

// The normal quantile of (i + 1/2) / 65536 by Newton's method, starting from its neighbour.
std::vector<float> make_quantiles() {
  std::vector<float> table(kQuantiles);
  double x = -4.3;
  for (int64_t i = 0; i < kQuantiles / 2; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / kQuantiles;
    for (int step = 0; step < 12; ++step) {
      const double cdf = 0.5 * std::erfc(-x / std::numbers::sqrt2);
      const double density =
          std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
      x -= (cdf - p) / density;
    }
    table[static_cast<size_t>(i)] = static_cast<float>(x);
    table[static_cast<size_t>(kQuantiles - 1 - i)] = static_cast<float>(-x);
  }
  return table;
}

uint32_t encode(int32_t dtype, float x) {
  if (dtype == VCA_BF16) return spec::bf16_encode(x);
  if (dtype == VCA_FP16) return spec::fp16_encode(x);
  return spec::float_bits(x);
}

float decode(int32_t dtype, const uint8_t* at) {
  if (dtype == VCA_FP32) {
    float x = 0;
    std::memcpy(&x, at, 4);
    return x;
  }
  uint16_t code = 0;
  std::memcpy(&code, at, 2);
  return dtype == VCA_BF16 ? spec::bf16_decode(code) : spec::fp16_decode(code);
}

int64_t bytes_of(int32_t dtype) { return dtype == VCA_FP32 ? 4 : 2; }

const std::vector<uint32_t>& quantile_codes(int32_t dtype) {
  static const auto tables = [] {
    const std::vector<float> quantiles = make_quantiles();
    std::array<std::vector<uint32_t>, 3> codes;
    for (int32_t type : {VCA_BF16, VCA_FP16, VCA_FP32})
      for (float x : quantiles) codes[static_cast<size_t>(type)].push_back(encode(type, x));
    return codes;
  }();
  return tables[static_cast<size_t>(dtype)];
}

// The finaliser of splitmix64: every output bit depends on every input bit.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

template <class T>
void fill_row(const std::vector<uint32_t>& codes, uint64_t row, int32_t d, uint8_t* out) {
  for (int32_t i = 0; i < d; i += 4) {
    // 32 groups of four are room for head_dim 128.
    uint64_t bits = mix((row * 32 + static_cast<uint64_t>(i / 4) + 1) * 0x9E3779B97F4A7C15ull);
    for (int32_t j = i; j < std::min(d, i + 4); ++j, bits >>= 16) {
      const auto code = static_cast<T>(codes[bits & 0xFFFF]);
      std::memcpy(out + static_cast<size_t>(j) * sizeof(T), &code, sizeof(T));
    }
  }
}

spec::TensorView head_view(const std::vector<uint8_t>& data, const ProblemText& p, int64_t rows) {
  spec::TensorView view;
  view.data = data.data();
  view.dtype = static_cast<spec::DType>(p.dtype);
  view.shape = {1, 1, rows, p.d};
  view.stride = {rows * p.d, rows * p.d, p.d, 1};
  return view;
}

std::vector<uint8_t> head_rows(const ProblemText& p, int which, int64_t b, int64_t h,
                               const std::vector<int64_t>& rows, int threads) {
  const int64_t row_bytes = p.d * bytes_of(p.dtype);
  std::vector<uint8_t> data(rows.size() * static_cast<size_t>(row_bytes));
  const auto n = static_cast<int64_t>(rows.size());
  core::parallel_for((n + kChunkRows - 1) / kChunkRows, threads, [&](int64_t chunk, int) {
    for (int64_t i = chunk * kChunkRows; i < std::min(n, (chunk + 1) * kChunkRows); ++i)
      normal_row(p, which, b, h, rows[static_cast<size_t>(i)], data.data() + i * row_bytes);
  });
  return data;
}

std::vector<int64_t> first_tokens(int64_t n) {
  std::vector<int64_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), int64_t{0});
  return tokens;
}

}  // namespace

void normal_row(const ProblemText& p, int which, int64_t b, int64_t h, int64_t s, uint8_t* out) {
  const int64_t heads = which == 0 ? p.h_q : p.h_kv, tokens = which == 0 ? p.s_q : p.s_kv;
  // Unsigned: a wrap would repeat rows and do no other harm.
  const uint64_t row = (static_cast<uint64_t>(b * heads + h) * static_cast<uint64_t>(tokens) +
                        static_cast<uint64_t>(s)) *
                           3 +
                       static_cast<uint64_t>(which);
  const std::vector<uint32_t>& codes = quantile_codes(p.dtype);
  if (p.dtype == VCA_FP32)
    fill_row<uint32_t>(codes, row, p.d, out);
  else
    fill_row<uint16_t>(codes, row, p.d, out);
}

std::vector<uint8_t> normal_buffer(const ProblemText& p, int buffer, int threads) {
  const int64_t bytes = bytes_of(p.dtype);
  std::vector<uint8_t> data(static_cast<size_t>(core::buffer_elements(p, buffer) * bytes));
  const bool fused = p.memory == core::ProblemMemory::fused;
  for (int which = fused ? 0 : buffer; which < (fused ? 3 : buffer + 1); ++which) {
    const core::ProblemView view = core::view_of(p, which);
    const int64_t tokens = view.shape[2], chunks = (tokens + kChunkRows - 1) / kChunkRows;
    core::parallel_for(view.shape[0] * view.shape[1] * chunks, threads, [&](int64_t i, int) {
      const int64_t b = i / chunks / view.shape[1], h = i / chunks % view.shape[1];
      const int64_t first = i % chunks * kChunkRows;
      for (int64_t s = first; s < std::min(tokens, first + kChunkRows); ++s) {
        const int64_t at =
            view.offset + b * view.stride[0] + h * view.stride[1] + s * view.stride[2];
        normal_row(p, which, b, h, s, data.data() + at * bytes);
      }
    });
  }
  return data;
}

SampledRows exact_sample(const ProblemText& p, int threads) {
  SampledRows sample;
  const std::vector<int64_t> rows = spec::evenly_spread(p.s_q, kSampledRows);
  const std::vector<int64_t> keys = first_tokens(p.keys());
  for (const int64_t head : spec::evenly_spread(p.b * p.h_q, kSampledHeads)) {
    const int64_t b = head / p.h_q, h = head % p.h_q, kv_head = h / (p.h_q / p.h_kv);
    const std::vector<uint8_t> q = head_rows(p, 0, b, h, rows, threads);
    const std::vector<uint8_t> k = head_rows(p, 1, b, kv_head, keys, threads);
    const std::vector<uint8_t> v = head_rows(p, 2, b, kv_head, keys, threads);
    const auto n = static_cast<int64_t>(rows.size());
    spec::Problem problem;
    problem.set_tensors(head_view(q, p, n), head_view(k, p, p.keys()), head_view(v, p, p.keys()));
    spec::SubProblem sub;
    sub.q_len = n;
    sub.segments = {keys};
    const size_t first = sample.o.size();
    sample.o.resize(first + rows.size() * static_cast<size_t>(p.d));
    core::parallel_for(n, threads, [&](int64_t i, int) {
      spec::exact_row(problem, sub, 0, i, sample.o.data() + first + i * p.d, nullptr, nullptr);
    });
    for (const int64_t s : rows) sample.places.push_back({b, h, s});
  }
  return sample;
}

SampledError relative_error(const ProblemText& p, const SampledRows& exact,
                            const std::vector<uint8_t>& o) {
  struct Sums {
    double error = 0, norm = 0;
    double relative() const { return std::sqrt(error / norm); }
  };
  Sums all;
  std::map<std::pair<int64_t, int64_t>, Sums> heads;
  const auto d = static_cast<size_t>(p.d);
  for (size_t i = 0; i < exact.o.size(); ++i) {
    const double got = decode(p.dtype, o.data() + i * static_cast<size_t>(bytes_of(p.dtype)));
    const double error = (got - exact.o[i]) * (got - exact.o[i]);
    const SampledRows::Place& at = exact.places[i / d];
    for (Sums* sums : {&all, &heads[{at.b, at.h}]}) {
      sums->error += error;
      sums->norm += exact.o[i] * exact.o[i];
    }
  }
  SampledError result{all.relative(), 0};
  for (const auto& [head, sums] : heads)
    if (!(sums.relative() <= result.worst_head)) result.worst_head = sums.relative();
  if (std::isnan(result.all)) result.worst_head = result.all;
  return result;
}

}  // namespace vca::tools
