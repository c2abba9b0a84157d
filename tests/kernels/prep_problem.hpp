// SPDX-License-Identifier: Apache-2.0
// A preprocessing case on the host: awkward tensors and the request that describes them.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/packed_problem.hpp"
#include "kernels/prep/workspace.hpp"
#include "kernels/prep_cases.hpp"
#include "spec/operands.hpp"

namespace vca::tests {

// Zeroed pages that exist once they are touched: far_apart tensors span gigabytes.
class LazyBytes {
 public:
  explicit LazyBytes(size_t n) : size_(std::max<size_t>(n, 1)) {
    data_ = static_cast<uint8_t*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (data_ == MAP_FAILED) std::abort();
  }
  ~LazyBytes() { munmap(data_, size_); }
  LazyBytes(const LazyBytes&) = delete;
  LazyBytes& operator=(const LazyBytes&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_;
  size_t size_;
};

// Everything of a case on the host. `request` points to host memory; a device test re-points it.
struct PrepProblem {
  PrepCase shape;
  std::unique_ptr<LazyBytes> storage[3];  // q, k, v; fused_qkv: all in the first
  spec::Problem problem;                  // as the specification sees it
  kernels::prep::PrepParams request;
  std::vector<float> cos, sin;
  std::vector<int32_t> kv_lens;
  std::vector<uint8_t> key_mask;
  std::vector<int32_t> order;                                       // by kv block
  std::vector<std::vector<std::vector<int64_t>>> order_by_segment;  // [sub * h_kv + head]

  explicit PrepProblem(const PrepCase& c);
  PrepProblem(const PrepProblem&) = delete;
  PrepProblem& operator=(const PrepProblem&) = delete;

 private:
  void place(int which, spec::TensorView& t, int64_t h, int64_t s);
  void fill(spec::TensorView& t, Random& rng, double sigma, double mean, bool channel_means);
  void make_rope();
  void make_segments(Random& rng);
  void make_order(Random& rng);
};

inline void PrepProblem::place(int which, spec::TensorView& t, int64_t h, int64_t s) {
  const PrepCase& c = shape;
  const int64_t d = c.d, b = c.b;
  t.dtype = c.dtype;
  t.shape = {b, h, s, d};
  int64_t first = 0;
  switch (c.memory) {
    case Memory::hnd:
      t.stride = {h * s * d, s * d, d, 1};
      break;
    case Memory::nhd:
      t.stride = {s * h * d, d, h * d, 1};
      break;
    case Memory::fused_qkv:
      t.stride = {s * 3 * h * d, d, 3 * h * d, 1};
      first = which * h * d;
      break;
    case Memory::misaligned:
    case Memory::odd_address:
      t.stride = {h * s * (d + 3) + 5, s * (d + 3) + 1, d + 3, 1};
      first = 1;
      break;
    case Memory::shared_heads:
      t.stride = {s * d, 0, d, 1};
      break;
    case Memory::shared_tokens:
      t.stride = {h * d, d, 0, 1};
      break;
    case Memory::shared_batches:
      t.stride = {0, s * d, d, 1};
      break;
    case Memory::far_apart:
      t.stride = {h * ((int64_t{1} << 31) + 64), (int64_t{1} << 31) + 64, d, 1};
      break;
  }
  const int64_t last = first + (b - 1) * t.stride[0] + (h - 1) * t.stride[1] +
                       std::max<int64_t>(s - 1, 0) * t.stride[2] + 3 * h * d + 8;
  auto& bytes = storage[c.memory == Memory::fused_qkv ? 0 : which];
  if (bytes == nullptr)
    bytes = std::make_unique<LazyBytes>(static_cast<size_t>(last * spec::dtype_bytes(c.dtype)));
  t.data = bytes->data() + first * spec::dtype_bytes(c.dtype) +
           (c.memory == Memory::odd_address ? 1 : 0);
}

inline void PrepProblem::fill(spec::TensorView& t, Random& rng, double sigma, double mean,
                              bool channel_means) {
  std::vector<double> offset(static_cast<size_t>(shape.d), mean);
  if (channel_means)
    for (double& x : offset) x *= 4.0 * rng.normal();
  auto* base = static_cast<uint8_t*>(const_cast<void*>(t.data));
  for (int64_t b = 0; b < t.shape[0]; ++b)
    for (int64_t h = 0; h < t.shape[1]; ++h)
      for (int64_t s = 0; s < t.shape[2]; ++s)
        for (int64_t i = 0; i < shape.d; ++i) {
          auto x =
              static_cast<float>(sigma * rng.normal() + sigma * offset[static_cast<size_t>(i)]);
          if (shape.nonfinite && h < t.shape[1] / shape.h_kv && rng.next() % 8 == 0)
            x = (s + i) % 2 == 0 ? NAN : INFINITY;
          const int64_t at = b * t.stride[0] + h * t.stride[1] + s * t.stride[2] + i;
          if (t.dtype == spec::DType::fp32) {
            std::memcpy(base + at * 4, &x, 4);
          } else {
            const uint16_t bits =
                t.dtype == spec::DType::bf16 ? spec::bf16_encode(x) : spec::fp16_encode_sat(x);
            std::memcpy(base + at * 2, &bits, 2);
          }
        }
}

inline void PrepProblem::make_rope() {
  const PrepCase& c = shape;
  const auto convention = c.rope == RopeKind::half || c.rope == RopeKind::table_half
                              ? spec::RopeConvention::half
                              : spec::RopeConvention::interleaved;
  // Grids begin and end inside the tokens.
  const auto grid = [&](const std::array<int, 3>& axes, double theta) {
    problem.rope = spec::make_rope(convention, axes, theta, {4, 7, 9}, 11);
  };
  if (c.rope == RopeKind::interleaved) {
    grid({44, 42, 42}, 10000.0);
  } else if (c.rope == RopeKind::half) {
    grid({32, 32, 32}, 10000.0);
  } else if (c.rope == RopeKind::hunyuan) {
    grid({16, 56, 56}, 256.0);
  } else if (c.rope == RopeKind::head_64) {
    grid({24, 20, 20}, 10000.0);
  } else if (c.rope == RopeKind::odd_axes) {
    grid({2, 2, 4}, 10000.0);
  } else if (c.rope != RopeKind::none) {
    const int rotated = c.rope == RopeKind::table_half ? 96 : 128;
    for (int64_t i = 0; i < c.s_q * rotated / 2; ++i) {
      cos.push_back(static_cast<float>(std::cos(0.37 * static_cast<double>(i))));
      sin.push_back(static_cast<float>(std::sin(0.37 * static_cast<double>(i))));
    }
    problem.rope = spec::make_rope_from_tables(convention, rotated, cos.data(), sin.data(), c.s_q);
  }
}

inline void PrepProblem::make_segments(Random& rng) {
  const PrepCase& c = shape;
  if (c.lens) {
    const int64_t length[3] = {c.s_kv * 5 / 7, 0, c.s_kv};
    for (int64_t b = 0; b < c.b; ++b) kv_lens.push_back(static_cast<int32_t>(length[b % 3]));
  }
  if (c.mask)
    for (int64_t b = 0; b < c.b; ++b)  // the last batch of several has no key at all
      for (int64_t t = 0; t < c.s_kv; ++t)
        key_mask.push_back(b != 2 && rng.next() % 5 > static_cast<uint64_t>(b) ? 1 : 0);

  auto& segments = request.segments;
  if (c.layout == Layout::one) {
    segments.push_back({0, c.s_kv});
  } else if (c.layout == Layout::with_text_and_padding) {
    segments.push_back({0, c.s_kv * 2 / 3});  // [2/3, 3/4) is padding
    segments.push_back({c.s_kv * 3 / 4, c.s_kv / 8});
    segments.push_back({c.s_kv * 3 / 4 + c.s_kv / 8, 1});
  } else {
    segments = {{0, 128}, {128, 1}, {129, 700}, {829, c.s_kv - 829}};
  }
  for (int64_t b = 0; b < c.b; ++b) {
    if (c.layout != Layout::sequences) {
      request.subs.push_back({b, 0, c.s_q, 0, static_cast<int64_t>(segments.size())});
      continue;
    }
    for (size_t i = 0; i < segments.size(); ++i)  // the second one is padding: its queries get 0
      request.subs.push_back({b, segments[i].begin, segments[i].len, static_cast<int64_t>(i),
                              i == 1 ? int64_t{0} : int64_t{1}});
  }
  for (const kernels::prep::Sub& s : request.subs) {
    spec::SubProblem sub;
    sub.batch = s.batch;
    sub.q_begin = s.q_begin;
    sub.q_len = s.q_len;
    for (int64_t i = 0; i < s.n_segments; ++i) {
      const auto& segment = segments[static_cast<size_t>(s.first_segment + i)];
      std::vector<int64_t> valid;
      for (int64_t t = segment.begin; t < segment.begin + segment.len; ++t) {
        if (c.lens && t >= kv_lens[static_cast<size_t>(s.batch)]) continue;
        if (c.mask && key_mask[static_cast<size_t>(s.batch * c.s_kv + t)] == 0) continue;
        valid.push_back(t);
      }
      if (valid.empty()) continue;
      sub.segments.push_back(valid);
      sub.segment_info.push_back({segment.begin, segment.len, 0});
    }
    problem.subs.push_back(std::move(sub));
  }
}

inline void PrepProblem::make_order(Random& rng) {
  const kernels::prep::Layout layout(request);
  for (size_t i = 0; i < problem.subs.size(); ++i)
    for (int64_t h = 0; h < shape.h_kv; ++h) {
      auto tokens = problem.subs[i].segments;
      if (shape.shuffled)
        for (auto& segment : tokens)
          for (size_t n = segment.size(); n > 1; --n)
            std::swap(segment[n - 1], segment[rng.next() % n]);
      const kernels::SubInfo& info = layout.sub_info[i];
      if (shape.shuffled) {
        order.resize(static_cast<size_t>((info.kv_block_base + (h + 1) * info.kv_block_stride) *
                                         spec::kBlock),
                     -1);
        auto at =
            static_cast<size_t>((info.kv_block_base + h * info.kv_block_stride) * spec::kBlock);
        for (const auto& segment : tokens) {
          for (const int64_t t : segment) order[at++] = static_cast<int32_t>(t);
          at = (at + spec::kBlock - 1) / spec::kBlock * spec::kBlock;
        }
      }
      order_by_segment.push_back(std::move(tokens));
    }
}

inline PrepProblem::PrepProblem(const PrepCase& c) : shape(c) {
  Random rng(static_cast<uint64_t>(c.s_kv * 131 + c.d));
  spec::Problem& p = problem;
  place(0, p.q, c.h_q, c.s_q);
  place(1, p.k, c.h_kv, c.s_kv);
  place(2, p.v, c.h_kv, c.s_kv);
  fill(p.q, rng, c.magnitude, 0.0, false);
  fill(p.k, rng, c.magnitude, c.k_mean, true);
  fill(p.v, rng, c.magnitude, c.v_mean, true);
  p.set_tensors(p.q, p.k, p.v);
  if (c.scale != 0.0 || std::signbit(c.scale)) p.scale = c.scale;
  p.recipe = spec::find_recipe(c.recipe);
  p.hadamard = p.recipe->hadamard || c.hadamard;
  make_rope();
  make_segments(rng);
  request.q = p.q;
  request.k = p.k;
  request.v = p.v;
  request.scale = p.scale;
  request.recipe = p.recipe;
  request.hadamard = p.hadamard;
  request.rope = c.rope == RopeKind::none ? nullptr : &p.rope;
  request.kv_lens = c.lens ? kv_lens.data() : nullptr;
  request.key_mask = c.mask ? key_mask.data() : nullptr;
  request.lse = c.lse;
  make_order(rng);
  request.order = c.shuffled ? order.data() : nullptr;
}

}  // namespace vca::tests
