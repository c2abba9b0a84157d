// SPDX-License-Identifier: Apache-2.0
// What the preprocessing kernels are given, and how a flat block index becomes a piece of work.
//
// Index spaces (capacities come from shapes only; lengths and masks are read on the device):
//   unit         (sub-problem, kv head)
//   kv block     kv_block_base + head * kv_block_stride + j, j < n_blocks <= capacity
//   chunk        128 consecutive tokens of a segment; a sub-problem has as many chunks as its
//                capacity in blocks
//   rank         position of a valid token among the sub-problem's valid tokens, ascending
//   rank group   1024 ranks; a sub-problem has at most mu_group_stride of them
#pragma once

#include <cstdint>

#include "kernels/common/params.hpp"
#include "kernels/prep/arith.hpp"
#include "kernels/prep/divide.hpp"
#include "kernels/prep/int8_token.hpp"
#include "spec/problem.hpp"

namespace vca::kernels::prep {

inline constexpr int kRows = 128;        // of a tile, of a block, of a chunk
inline constexpr int kRankGroup = 1024;  // 8 blocks

struct Tensor {
  const void* data;
  spec::DType dtype;
  int64_t stride_b, stride_h, stride_s;  // elements
  bool vectors;                          // every row can be read in 16-byte pieces that end with it
  uint32_t row_bytes;                    // stride_s in bytes, where vectors
};

// Key tokens [begin, begin + len) that start a fresh block.
struct Segment {
  int64_t begin, len;
};

// The half of a sub-problem that only preprocessing needs; SubInfo is the other one.
struct SubExtra {
  int64_t chunk_base;     // first chunk, and block without heads
  int64_t capacity;       // blocks: sum over segments of ceil(len / 128)
  int64_t first_segment;  // in segments
  int64_t state_base;     // in segment_state
  int64_t n_segments;
};

// Where the valid tokens of a segment went.
struct SegmentState {
  int32_t block0, rank0, count;
};

enum class RopePath : int32_t { none, interleaved, half, scalar };  // rope.hpp

// Where a group of four frequencies lies: those of one axis, and from frequency `own` on those of
// another one where axes meet. Few words: a thread keeps them in registers throughout.
struct alignas(16) AngleGroup {
  uint32_t table[2];  // floats into the table at position 0
  uint32_t axes;  // one bit for each of: axis of table[0] is 1, is 2, of table[1] 1, 2; then own
  uint32_t unused;
  VCA_DEVICE int own() const { return static_cast<int>(axes >> 4); }
};

struct Rope {
  spec::RopeConvention convention;
  RopePath path;
  int32_t rotated;
  uint32_t begin, len;
  // Factored tables, in groups of four frequencies {cos 4, sin 4}. Frequency f of axis a at
  // position i: group f / 4 at table + axis_table[a] + i * pitch + f / 4 * 8.
  const float* table;
  uint32_t pitch;
  const AngleGroup* groups;
  Divider by_w, by_h;
  int32_t axis_end[3];  // frequencies of axes 0 ... a
  uint32_t axis_table[3];
  const float* cos;  // [len][rotated / 2] instead of the axes
  const float* sin;
};

struct Params {
  Tensor q, k, v;
  Rope rope;
  int64_t s_q, s_kv;
  int32_t h_q, h_kv, d, d_pad, d_pad_log2;
  int32_t n_subs;
  int64_t max_chunks, max_q_tiles, max_rank_groups;                          // over sub-problems
  Divider by_h_q, by_h_kv, by_group, by_chunks, by_q_tiles, by_rank_groups;  // group: h_q / h_kv
  bool hadamard, negate_q;
  // What the recipe wants (recipe_params in workspace.hpp).
  bool e4m3_head;       // E4M3 scores with one scale a head (fp8), instead of INT8 by groups
  bool only_maximum;    // a pass of KeyTiles or QueryTiles that finds it
  bool plain_values;    // amax/448 a channel, no block means (sage2, fp8), instead of V-Smooth
  int32_t offset_step;  // the K offset is the mean of every offset_step-th valid row; 0: none
  float code_max;       // 127 or 448, the largest score code
  float code_scale;     // RN(8 log2(e) |scale|), Hadamard folded in
  float scale_f32;
  const int32_t* kv_lens;   // [B] or null
  const uint8_t* key_mask;  // [B, S_kv] or null
  const int32_t* order;     // [kv block][128] token of each column, or null: token order

  const uint8_t* zeros;  // 32 of them
  const SubExtra* extra;
  const Segment* segments;
  SubInfo* subs;
  SegmentState* segment_state;
  int32_t* chunk_rank;   // [chunk]: valid tokens in the chunk, then the rank of its first one
  int32_t* n_valid;      // [sub]
  int32_t* tokens;       // [chunk][128] by rank
  int32_t* block_valid;  // [block without heads]
  int32_t* block_rank;   // [block without heads]: rank of its first column in gathered order

  float* k_offset;       // [unit][d_pad]
  float* k_partial;      // [kv rank group][d_pad]
  float* v_partial;      // [kv rank group][2][d_pad]: minimum, maximum
  float* v_abs_max;      // [unit]
  float* v_factor;       // [unit][d_pad]: factor on V before encoding; 0 in padded channels
  int8_t* token_values;  // [row][d_pad], what grouping sees of V; null: no grouping
  const TokenScale* token_scale;  // [unit]
  const uint8_t* token_wanted;    // [unit]
  float* k_head_max;              // [unit], e4m3_head: largest |k|
  float* q_head_max;              // [head], e4m3_head: largest |q|
  float* energy_rows;     // [kv block][128] by rank; null unless energy_removed is asked for
  float* energy_blocks;   // [kv block]
  float* energy_removed;  // [unit], the caller's

  uint8_t* q_tiles;
  uint8_t* k_tiles;
  uint8_t* v_tiles;
  uint8_t* mu_tiles;
  float* q_unit;
  float* k_scale;
  float* s_v;
  int32_t* exponent;
  float* qk_offset;  // null unless LSE is asked for
};

// A piece of work: heads run fastest, so that what runs at the same time reads neighbouring heads
// of the same tokens; these share RoPE tables, and DRAM pages where heads are interleaved.
struct Place {
  uint32_t sub, head, item;
};
VCA_DEVICE Place place_of(uint32_t block, const Divider& heads, const Divider& items) {
  Place out;
  const uint32_t rest = heads.divide(block);
  out.head = block - rest * heads.divisor;
  out.sub = items.divide(rest);
  out.item = rest - out.sub * items.divisor;
  return out;
}

// One block of keys or values.
struct KvBlock {
  uint32_t unit, sub, head;
  uint32_t index;  // in the K and V operands
  int64_t batch;
  int32_t j, n_blocks;    // in the unit
  int32_t n_valid, rank;  // valid columns, rank of the first
  const int32_t* tokens;  // of its valid columns
};
// False where the unit has fewer blocks than its capacity.
VCA_DEVICE bool locate(const Params& p, uint32_t block, KvBlock& out) {
  const Place u = place_of(block, p.by_h_kv, p.by_chunks);
  const SubInfo& sub = p.subs[u.sub];
  if (static_cast<int32_t>(u.item) >= sub.n_blocks) return false;
  const int64_t shared = p.extra[u.sub].chunk_base + u.item;
  out.unit = u.sub * static_cast<uint32_t>(p.h_kv) + u.head;
  out.sub = u.sub;
  out.head = u.head;
  out.batch = sub.batch;
  out.index = static_cast<uint32_t>(sub.kv_block_base + u.head * sub.kv_block_stride) + u.item;
  out.j = static_cast<int32_t>(u.item);
  out.n_blocks = sub.n_blocks;
  out.n_valid = p.block_valid[shared];
  out.rank = p.block_rank[shared];
  out.tokens = p.order != nullptr ? p.order + int64_t{out.index} * kRows
                                  : p.tokens + p.extra[u.sub].chunk_base * kRows + out.rank;
  return true;
}
// Clamped: a caller's order with a wrong token must not read outside the tensor.
VCA_DEVICE int32_t token_of(const Params& p, const KvBlock& b, int column) {
  const int32_t token = b.tokens[column], last = static_cast<int32_t>(p.s_kv) - 1;
  return token < 0 ? 0 : token < last ? token : last;
}

// ceil(a / b) of non-negative integers.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace vca::kernels::prep
