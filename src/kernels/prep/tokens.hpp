// SPDX-License-Identifier: Apache-2.0
// Which key tokens are valid, and where they go: count per chunk, prefix sums and block layout per
// sub-problem, then scatter (docs/numerics.md D1). Lengths and masks live on the device, so this
// does too; everything here is integers.
//
// A kernel is a struct with Shared, kThreads, kPhases and phase(): all threads of a block finish a
// phase before one starts the next, and nothing but Shared and global memory lives across phases.
// So a loop on the host can run it (tests/kernels).
#pragma once

#include "kernels/prep/params.hpp"

namespace vca::kernels::prep {

// Step i of an inclusive scan: reads buffer[i % 2], writes the other one.
template <int kSize>
VCA_DEVICE void scan_step(int32_t (&buffer)[2][kSize], int i, int thread) {
  const int distance = 1 << i;
  const int32_t own = buffer[i % 2][thread];
  buffer[(i + 1) % 2][thread] = thread >= distance ? own + buffer[i % 2][thread - distance] : own;
}

struct Chunk {
  int64_t sub, index;        // index: among all chunks
  int64_t begin, n, number;  // tokens [begin, begin + n), number within the sub-problem
};
VCA_DEVICE bool locate_chunk(const Params& p, int64_t block, Chunk& out) {
  out.sub = block / p.max_chunks;
  out.number = block % p.max_chunks;
  const SubExtra& extra = p.extra[out.sub];
  if (out.number >= extra.capacity) return false;
  out.index = extra.chunk_base + out.number;
  int64_t c = out.number;
  const Segment* s = p.segments + extra.first_segment;
  for (; c >= ceil_div(s->len, kRows); ++s) c -= ceil_div(s->len, kRows);
  out.begin = s->begin + c * kRows;
  out.n = min_i64(kRows, s->len - c * kRows);
  return true;
}
VCA_DEVICE bool is_valid(const Params& p, const Chunk& c, int i) {
  if (i >= c.n) return false;
  const int64_t token = c.begin + i, batch = p.subs[c.sub].batch;
  if (p.kv_lens != nullptr && token >= p.kv_lens[batch]) return false;
  return p.key_mask == nullptr || p.key_mask[batch * p.s_kv + token] != 0;
}

// All three passes in one where every key is valid: chunks are blocks, and a chunk's rank is the
// length of what stands before it. One block of threads a chunk, and at least one a sub-problem.
struct AllTokens {
  using Params = prep::Params;
  static constexpr int kThreads = kRows;
  static constexpr int kPhases = 1;
  struct Shared {};
  VCA_DEVICE static void phase(int, const Params& p, Shared&, int64_t block, int thread) {
    const int64_t chunks = p.max_chunks > 0 ? p.max_chunks : 1;
    const int64_t sub = block / chunks, number = block % chunks;
    const SubExtra& extra = p.extra[sub];
    const Segment* segments = p.segments + extra.first_segment;
    if (number == 0 && thread == 0) {
      int64_t n = 0, first_block = 0;
      for (int64_t i = 0; i < extra.n_segments; ++i) {
        p.segment_state[extra.state_base + i] = {static_cast<int32_t>(first_block),
                                                 static_cast<int32_t>(n),
                                                 static_cast<int32_t>(segments[i].len)};
        n += segments[i].len;
        first_block += ceil_div(segments[i].len, kRows);
      }
      p.n_valid[sub] = static_cast<int32_t>(n);
      p.subs[sub].n_blocks = static_cast<int32_t>(extra.capacity);
    }
    if (number >= extra.capacity) return;
    int64_t c = number, rank = 0;
    const Segment* s = segments;
    for (; c >= ceil_div(s->len, kRows); ++s) {
      c -= ceil_div(s->len, kRows);
      rank += s->len;
    }
    rank += c * kRows;
    const int64_t n = min_i64(kRows, s->len - c * kRows);
    if (thread < n)
      p.tokens[extra.chunk_base * kRows + rank + thread] =
          static_cast<int32_t>(s->begin + c * kRows + thread);
    if (thread != 0) return;
    p.block_rank[extra.chunk_base + number] = static_cast<int32_t>(rank);
    p.block_valid[extra.chunk_base + number] = static_cast<int32_t>(n);
  }
};

// Valid tokens of a chunk.
struct CountTokens {
  using Params = prep::Params;
  static constexpr int kThreads = kRows;
  static constexpr int kScan = 7;
  static constexpr int kPhases = kScan + 2;
  struct Shared {
    int32_t count[2][kRows];
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t block, int thread) {
    if (phase >= 1 && phase <= kScan) return scan_step(s.count, phase - 1, thread);
    Chunk c;
    if (!locate_chunk(p, block, c)) {
      s.count[0][thread] = 0;
      return;
    }
    if (phase == 0) s.count[0][thread] = is_valid(p, c, thread) ? 1 : 0;
    if (phase > kScan && thread == 0) p.chunk_rank[c.index] = s.count[kScan % 2][kRows - 1];
  }
};

// One block a sub-problem: ranks of the chunks, blocks of the segments, n_blocks.
struct LayOutTokens {
  using Params = prep::Params;
  static constexpr int kThreads = 1024;
  static constexpr int kScan = 10;
  static constexpr int kPhases = kScan + 3;
  struct Shared {
    int32_t sum[2][kThreads];
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t sub, int thread) {
    if (phase >= 1 && phase <= kScan) return scan_step(s.sum, phase - 1, thread);
    const SubExtra& extra = p.extra[sub];
    const int64_t span = ceil_div(extra.capacity, kThreads);
    int32_t* rank = p.chunk_rank + extra.chunk_base;
    const int64_t first = min_i64(thread * span, extra.capacity);
    const int64_t last = min_i64(first + span, extra.capacity);
    if (phase == 0) {
      int32_t sum = 0;
      for (int64_t c = first; c < last; ++c) sum += rank[c];
      s.sum[0][thread] = sum;
    } else if (phase == kScan + 1) {
      int32_t next = thread == 0 ? 0 : s.sum[kScan % 2][thread - 1];
      for (int64_t c = first; c < last; ++c) {
        const int32_t count = rank[c];
        rank[c] = next;
        next += count;
      }
    } else if (thread == 0) {
      lay_out_segments(p, extra, sub, s.sum[kScan % 2][kThreads - 1]);
    }
  }

 private:
  VCA_DEVICE static void lay_out_segments(const Params& p, const SubExtra& extra, int64_t sub,
                                          int32_t n_valid) {
    int64_t chunk = 0, block = 0;
    for (int64_t i = 0; i < extra.n_segments; ++i) {
      const auto rank_at = [&](int64_t c) {
        return c < extra.capacity ? p.chunk_rank[extra.chunk_base + c] : n_valid;
      };
      const int32_t rank0 = rank_at(chunk);
      chunk += ceil_div(p.segments[extra.first_segment + i].len, kRows);
      const int32_t count = rank_at(chunk) - rank0;
      p.segment_state[extra.state_base + i] = {static_cast<int32_t>(block), rank0, count};
      block += ceil_div(count, kRows);
    }
    p.n_valid[sub] = n_valid;
    p.subs[sub].n_blocks = static_cast<int32_t>(block);
  }
};

// Tokens to their ranks; and, seeing the chunk number as a block number, the block's extent.
struct ScatterTokens {
  using Params = prep::Params;
  static constexpr int kThreads = kRows;
  static constexpr int kScan = 7;
  static constexpr int kPhases = kScan + 2;
  struct Shared {
    int32_t count[2][kRows];
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t block, int thread) {
    if (phase >= 1 && phase <= kScan) return scan_step(s.count, phase - 1, thread);
    Chunk c;
    if (!locate_chunk(p, block, c)) {
      s.count[0][thread] = 0;
      return;
    }
    const bool valid = is_valid(p, c, thread);
    if (phase == 0) {
      s.count[0][thread] = valid ? 1 : 0;
      return;
    }
    const SubExtra& extra = p.extra[c.sub];
    if (valid) {
      const int32_t rank = p.chunk_rank[c.index] + s.count[kScan % 2][thread] - 1;
      p.tokens[extra.chunk_base * kRows + rank] = static_cast<int32_t>(c.begin + thread);
    }
    if (thread == 0 && c.number < p.subs[c.sub].n_blocks) {
      const SegmentState* state = p.segment_state + extra.state_base;
      while (c.number >= state->block0 + ceil_div(state->count, kRows)) ++state;
      const auto in_segment = static_cast<int32_t>((c.number - state->block0) * kRows);
      p.block_rank[c.index] = state->rank0 + in_segment;
      p.block_valid[c.index] = static_cast<int32_t>(min_i64(kRows, state->count - in_segment));
    }
  }
};

}  // namespace vca::kernels::prep
