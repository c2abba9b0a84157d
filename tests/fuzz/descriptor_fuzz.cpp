// SPDX-License-Identifier: Apache-2.0
// Descriptors of vca_attn_run: any shapes, strides, dtypes, enums, segments, lengths, masks,
// policies and rope tables. Every buffer is as long as what the descriptor says (a descriptor that
// says more than 64 KiB, or more work than a few milliseconds, is only queried and explained, which
// read no tensor), so that a sanitizer sees any access beyond it.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "tests/fuzz/fuzz.hpp"
#include "vca/vca.h"

namespace {

using vca::fuzz::Bytes;

constexpr int64_t kMostBytes = 65536;

struct Buffers {
  std::vector<std::unique_ptr<uint8_t[]>> owned;
  bool all_fit = true;

  // `bytes` bytes with the input's own in front; NULL with 0.
  void* make(int64_t bytes, Bytes& in) {
    if (bytes < 0 || bytes > kMostBytes) {
      all_fit = false;
      return nullptr;
    }
    if (bytes == 0) return nullptr;
    owned.push_back(std::make_unique<uint8_t[]>(static_cast<size_t>(bytes)));
    uint8_t* p = owned.back().get();
    uint64_t state = in.take<uint64_t>() | 1;
    for (int64_t i = 0; i < bytes; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      p[i] = static_cast<uint8_t>(state >> 56);
    }
    return p;
  }
};

// Fields that are wrong on purpose are rare: a descriptor has some forty, and one is enough to be
// refused.
bool rare(Bytes& in) { return in.byte() == 0xA5; }

int64_t extent(Bytes& in, int most) {
  return rare(in) ? in.take<int64_t>() : in.byte() % (most + 1);
}

vca_tensor tensor(Bytes& in, Buffers& buffers, const int64_t* like, bool output) {
  vca_tensor t{};
  t.dtype = rare(in) ? in.take<int32_t>() : in.pick(3);
  for (int i = 0; i < 4; ++i) t.shape[i] = rare(in) ? extent(in, 40) : like[i];
  const bool strided = in.pick(output ? 32 : 4) == 0;  // outputs must not overlap themselves
  int64_t stride = 1;
  for (int i = 3; i >= 0; --i) {
    t.stride[i] = (strided && i < 3) || rare(in) ? extent(in, 200) : stride;
    if (__builtin_mul_overflow(stride, std::max<int64_t>(t.shape[i], 1), &stride)) stride = 1;
  }
  // Bytes from the first to behind the last element.
  int64_t last = 0;
  bool empty = false, overflow = false;
  for (int i = 0; i < 4; ++i) {
    if (t.shape[i] == 0) empty = true;
    int64_t part = 0;
    overflow |= t.shape[i] < 0 || __builtin_mul_overflow(t.shape[i] - 1, t.stride[i], &part);
    overflow |= __builtin_add_overflow(last, part, &last);
  }
  const int64_t elem = t.dtype == VCA_FP32 ? 4 : 2;
  if (empty) {
    t.data = nullptr;
  } else if (overflow || last < 0 || last > kMostBytes) {
    buffers.all_fit = false;
  } else {
    t.data = buffers.make((last + 1) * elem, in);
  }
  return t;
}

// Tiles of 64 queries by a block of 128 keys, and blocks of keys to group; at least one of each
// for every head.
bool little_work(const vca_attn_desc& d) {
  constexpr int64_t kMost = 64;
  const auto blocks = [](int64_t n, int64_t of) { return std::max<int64_t>(n - 1, 0) / of + 1; };
  int64_t work = 1;
  for (const int64_t factor :
       {std::max<int64_t>(d.q.shape[0], 1), std::max<int64_t>({d.q.shape[1], d.k.shape[1], 1}),
        blocks(d.q.shape[2], 64), blocks(d.k.shape[2], 128)}) {
    if (factor > kMost) return false;
    work *= factor;
  }
  return work <= kMost;
}

int32_t enumerated(Bytes& in, int n) { return rare(in) ? in.take<int32_t>() : in.pick(n); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes in(data, size);
  Buffers buffers;
  vca_attn_desc d = vca_attn_desc_init();
  const size_t struct_size = rare(in) ? in.take<size_t>() : sizeof(d);
  // Mostly small, so that a second holds thousands of calls; sometimes more than a block of keys.
  int64_t b = extent(in, 2), h_kv = extent(in, 2), s_q = extent(in, 16);
  const int64_t group = extent(in, 2);
  int64_t s_kv = in.pick(2) != 0 ? s_q : extent(in, in.pick(32) != 0 ? 24 : 300);
  const int64_t dim = rare(in) ? extent(in, 2) : 1 + in.pick(in.pick(32) != 0 ? 13 : 128);
  int64_t h_q = 0;
  if (__builtin_mul_overflow(h_kv, group, &h_q)) h_q = 1;
  const int64_t like_q[4] = {b, h_q, s_q, dim}, like_k[4] = {b, h_kv, s_kv, dim};
  d.q = tensor(in, buffers, like_q, false);
  d.k = tensor(in, buffers, like_k, false);
  d.v = tensor(in, buffers, like_k, false);
  d.o = tensor(in, buffers, like_q, true);
  // A tensor may have got a shape of its own; the library goes by these axes.
  b = d.q.shape[0], h_q = d.q.shape[1], s_q = d.q.shape[2];
  h_kv = d.k.shape[1], s_kv = d.k.shape[2];
  d.k.dtype = d.v.dtype = rare(in) ? d.k.dtype : d.q.dtype;
  // The buffers were made for their own types; widening them needs new ones.
  for (vca_tensor* t : {&d.k, &d.v})
    if (t->dtype == VCA_FP32 && d.q.dtype == VCA_FP32 && t->data != nullptr) {
      int64_t last = 0;
      for (int i = 0; i < 4; ++i) last += (t->shape[i] - 1) * t->stride[i];
      t->data = buffers.make((last + 1) * 4, in);
    }
  const auto product = [](std::initializer_list<int64_t> list) {
    int64_t n = 1;
    for (const int64_t x : list)
      if (x < 0 || __builtin_mul_overflow(n, x, &n)) return int64_t{-1};
    return n;
  };
  const auto times = [](int64_t n, int64_t bytes) {
    return n < 0 || n > kMostBytes ? int64_t{-1} : n * bytes;
  };
  const uint8_t fields = in.byte(), more = in.byte();
  if (fields & 1) d.lse = static_cast<float*>(buffers.make(times(product({b, h_q, s_q}), 4), in));
  if (fields & 2) {
    d.has_scale = rare(in) ? in.byte() : 1;
    d.scale = rare(in) ? in.take<double>() : in.take<int16_t>() / 256.0;
  }
  d.recipe = enumerated(in, 17);
  d.grouping = enumerated(in, 8);
  d.hadamard = rare(in) ? in.take<int32_t>() : in.pick(3) - 1;
  d.target = rare(in) ? enumerated(in, 7) : in.pick(2);
  d.device = rare(in) ? in.take<int32_t>() : VCA_DEVICE_CPU;
  d.flags = rare(in) ? in.byte() : static_cast<uint32_t>(in.pick(8) == 7);
  // Seldom more than one: on busy processors a call waits longer for its threads than it computes.
  d.num_threads = rare(in) ? in.take<int32_t>() : in.pick(16) == 0 ? 2 : 1;
  if (fields & 4) {
    auto* lens = static_cast<int32_t*>(buffers.make(times(product({b}), 4), in));
    for (int64_t i = 0; lens != nullptr && i < b; ++i)
      lens[i] =
          rare(in) ? in.take<int32_t>()
                   : static_cast<int32_t>(std::min<int64_t>(in.byte(), std::max<int64_t>(s_kv, 0)));
    d.kv_lens = lens;
  }
  if (fields & 8) {
    auto* mask = static_cast<uint8_t*>(buffers.make(product({b, s_kv}), in));
    for (int64_t i = 0; mask != nullptr && i < b * s_kv; ++i)
      mask[i] &= i == 0 && rare(in) ? 255 : 1;
    d.key_mask = mask;
  }
  std::vector<vca_segment> segments;
  if (fields & 16) {
    int64_t begin = 0;
    const int n = 1 + in.pick(4);
    const bool ragged = in.pick(2) != 0 && s_q == s_kv;
    for (int i = 0; i < n; ++i) {
      vca_segment s{};
      const int64_t left = std::max<int64_t>(s_kv, 0) - begin;  // begin stays far below 2^31
      s.begin = rare(in) ? in.take<int64_t>() : begin;
      s.len = rare(in) || left < 0 ? extent(in, 50)
              : i == n - 1         ? left
                                   : in.byte() % (std::min<int64_t>(left, 200) + 1);
      s.kind = rare(in) ? enumerated(in, 4) : ragged ? 2 + in.pick(2) : in.pick(3);
      begin += s.len & 0xFFFFFF;
      segments.push_back(s);
    }
    d.segments = segments.data();
    d.n_segments = rare(in) ? std::min<int64_t>(in.byte(), n) : n;
  }
  if (fields & 32) {
    for (int64_t& g : d.grid) g = extent(in, 8);
    if (in.pick(4) != 0) d.grid[0] = s_kv, d.grid[1] = d.grid[2] = 1;
  }
  vca_rope rope{};
  if ((fields & 64) && (s_q == s_kv || rare(in))) {
    rope.struct_size = sizeof(rope);
    rope.convention = rare(in) ? in.take<int32_t>() : 1 + in.pick(2);
    for (int32_t& a : rope.axis_dim)
      a = rare(in)  ? in.take<int32_t>()
          : dim > 5 ? 2 * (in.pick(static_cast<int>(std::min<int64_t>(dim, 96)) / 6 + 1))
                    : 0;
    rope.theta = rare(in) ? in.take<double>() : 10000.0;
    for (int64_t& g : rope.grid) g = rare(in) ? extent(in, 6) : 1 + in.pick(3);
    rope.begin = extent(in, 4);
    if (in.pick(2) != 0) {
      int64_t half = 0;
      for (const int32_t a : rope.axis_dim) half += a;
      const int64_t bytes = times(product({s_q, half / 2}), 4);
      rope.cos = static_cast<float*>(buffers.make(bytes, in));
      rope.sin = static_cast<float*>(buffers.make(bytes, in));
    }
    d.rope = &rope;
  }
  if (more & 1)
    d.energy_removed = static_cast<float*>(buffers.make(times(product({b, h_kv}), 4), in));
  if (more & 2) d.regrouped = static_cast<uint8_t*>(buffers.make(product({b, h_kv}), in));
  vca_policy policy{};
  int32_t step = rare(in) ? in.take<int32_t>() : in.byte();
  std::vector<uint64_t> state;
  size_t bytes = 0;
  if ((more & 4) && vca_group_state_bytes(&d, &bytes) == VCA_OK && bytes <= kMostBytes) {
    state.resize((bytes + 7) / 8);
    if (!rare(in)) vca_group_state_init(&d, state.data(), bytes, nullptr);
    d.state = state.data();
    d.step = &step;
    if (more & 8) {
      policy.struct_size = sizeof(policy);
      policy.steps = rare(in) ? in.take<int32_t>() : in.byte();
      policy.window = in.pick(10) - 1;
      policy.refresh = in.pick(4);
      policy.after = enumerated(in, 3);
      policy.decay = rare(in) ? in.take<float>() : 0.5f;
      d.policy = &policy;
    }
  }

  // As many bytes as struct_size says, zeros behind what this version knows.
  d.struct_size = struct_size;
  std::vector<uint64_t> room(
      (std::clamp(struct_size, sizeof(d), static_cast<size_t>(kMostBytes)) + 7) / 8);
  std::memcpy(room.data(), &d, sizeof(d));
  const auto* desc = reinterpret_cast<const vca_attn_desc*>(room.data());

  vca_attn_info info{};
  info.struct_size = sizeof(info);
  const vca_status answer = vca_attn_query(desc, &info);
  char text[64];
  size_t needed = 0;
  vca_attn_explain(desc, text, sizeof text, &needed);
  if (!buffers.all_fit || !little_work(d)) return 0;
  if (answer == VCA_OK && (more & 16) && info.workspace_bytes <= (size_t{4} << 20)) {
    std::unique_ptr<uint8_t, decltype(&std::free)> workspace(
        static_cast<uint8_t*>(std::aligned_alloc(64, (info.workspace_bytes + 63) / 64 * 64)),
        &std::free);
    const vca_status ran = vca_attn_run(desc, workspace.get(), info.workspace_bytes, nullptr);
    if (ran == VCA_ERR_WORKSPACE || ran == VCA_ERR_INTERNAL) std::abort();
    return 0;
  }
  if (vca_attn_run(desc, nullptr, 0, nullptr) == VCA_ERR_INTERNAL) std::abort();
  return 0;
}

std::vector<std::vector<uint8_t>> vca::fuzz::seeds() {
  // The target gives any bytes a meaning, so a spread of them is as good as crafted ones.
  std::vector<std::vector<uint8_t>> out;
  uint64_t state = 1;
  for (int i = 0; i < 64; ++i) {
    std::vector<uint8_t> x(700);
    for (uint8_t& byte : x) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<uint8_t>(state >> 56);
    }
    out.push_back(x);
  }
  return out;
}
