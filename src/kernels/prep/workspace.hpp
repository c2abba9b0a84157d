// SPDX-License-Identifier: Apache-2.0
// Preprocessing seen from the host: what is asked for, and where everything lies in the workspace.
// Sizes depend on shapes and segments only, never on what kv_lens and key_mask contain, so that
// they can be asked for before any data exists. The formula is a table in README.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/group/workspace.hpp"
#include "kernels/prep/params.hpp"
#include "kernels/prep/rope_table.hpp"
#include "spec/problem.hpp"
#include "spec/tiles.hpp"

namespace vca::kernels::prep {

// Queries [q_begin, q_begin + q_len) of a batch attend to the keys of these segments.
struct Sub {
  int64_t batch, q_begin, q_len;
  int64_t first_segment, n_segments;
};

// A validated request. Data pointers are the device's; descriptors live on the host and may go away
// as soon as prepare() returns.
struct PrepParams {
  spec::TensorView q, k, v;
  double scale = 0;
  const spec::Recipe* recipe = nullptr;
  bool hadamard = false;
  const spec::Rope* rope = nullptr;  // factored tables on the host, whole tables on the device
  std::vector<Segment> segments;     // without padding segments, ascending within a sub-problem
  std::vector<Sub> subs;
  const int32_t* kv_lens = nullptr;   // device [B]
  const uint8_t* key_mask = nullptr;  // device [B, S_kv]
  // Device, token of every column: sub-problem i, kv head h, column n at
  // ((kv_block_base_i + h * kv_block_stride_i) * 128 + n), each segment starting a fresh block, as
  // KvOperands::order; pads are not read. Null: token order.
  const int32_t* order = nullptr;
  // Forms an order in the workspace instead, where active().
  group::Request grouping;
  bool lse = false;
  float* energy_removed = nullptr;  // device [sub][h_kv], optional output
};

inline bool supports(const spec::Recipe& r) {
  const bool scores =
      (r.qk == spec::QkFormat::int8 && r.k_mean) || r.qk == spec::QkFormat::e4m3_head;
  return scores && (r.v == spec::VFormat::e4m3_smooth || r.v == spec::VFormat::e4m3_channel);
}

// What every launcher refuses otherwise.
inline bool in_contract(const PrepParams& r, const void* workspace) {
  const auto& q = r.q.shape;
  const auto& k = r.k.shape;
  // 256: what cudaMalloc promises. Bulk copies read from 16-byte aligned addresses; only shared
  // memory needs 1 KiB.
  return reinterpret_cast<uintptr_t>(workspace) % 256 == 0 && q[3] >= 1 &&
         q[3] <= spec::kMaxHeadDim && k[3] == q[3] && r.v.shape == k && q[0] == k[0] &&
         q[1] <= 0x7FFFFFFF && (k[1] == 0 ? q[1] == 0 : q[1] % k[1] == 0) && q[2] <= 0x7FFFFFFF &&
         k[2] <= 0x7FFFFFFF && r.subs.size() <= 0x7FFFFFFF;
}

inline constexpr int64_t kWorkspaceAlign_bytes = spec::kTileAlignment_bytes;

// Byte offsets from the start of the workspace; -1 for what the request does not need.
struct Layout {
  explicit Layout(const PrepParams& request);

  int64_t descriptors, q_tiles, k_tiles, v_tiles, mu_tiles;
  int64_t q_unit, k_scale, s_v, exponent, qk_offset = -1;
  int64_t segment_state, chunk_rank, n_valid, tokens, block_valid, block_rank;
  int64_t k_offset, k_partial, v_partial, v_abs_max, v_factor;
  int64_t k_head_max = -1, q_head_max = -1;
  int64_t energy_rows = -1, energy_blocks = -1;
  int64_t bytes = 0;

  // Inside the descriptors.
  int64_t extra, segments, zeros, rope_table, rope_groups;
  int64_t descriptor_bytes;

  int64_t n_units, n_heads;
  int64_t max_chunks = 0, max_q_tiles = 0, max_rank_groups = 0;
  std::optional<group::Layout> group;  // where an order is formed: at `grouping`
  int64_t grouping = -1;
  // Scratch memory and tiles share memory: what QueryTiles may overwrite lies in [shared,
  // gathered_end), what every pass that writes tiles may in [gathered_end, scratch_end).
  int64_t shared, gathered_end, scratch_end;
  std::vector<SubInfo> sub_info;
  std::vector<SubExtra> sub_extra;
  Rope rope{};
  std::vector<float> rope_values;
  std::vector<AngleGroup> rope_group_values;

 private:
  static int64_t aligned(int64_t size_bytes) {
    return ceil_div(size_bytes, kWorkspaceAlign_bytes) * kWorkspaceAlign_bytes;
  }
  int64_t take(int64_t size_bytes) {
    const int64_t at = bytes;
    bytes += aligned(size_bytes);
    return at;
  }
};

inline Layout::Layout(const PrepParams& request) {
  const int64_t h_q = request.q.shape[1], h_kv = request.k.shape[1];
  const int64_t d = spec::padded_head_dim(static_cast<int>(request.q.shape[3]));
  const auto n_subs = static_cast<int64_t>(request.subs.size());
  n_units = n_subs * h_kv;
  n_heads = n_subs * h_q;
  int64_t tiles = 0, blocks = 0, groups = 0, chunks = 0, states = 0;
  for (const Sub& sub : request.subs) {
    int64_t capacity = 0, tokens = 0;
    for (int64_t i = 0; i < sub.n_segments; ++i) {
      const int64_t len = request.segments[static_cast<size_t>(sub.first_segment + i)].len;
      capacity += ceil_div(len, kRows);
      tokens += len;
    }
    SubInfo info{};
    info.q_tile_base = tiles;
    info.kv_block_base = blocks;
    info.mu_group_base = groups;
    info.kv_block_stride = capacity;
    info.mu_group_stride = ceil_div(capacity, spec::kMuBlocks);
    info.batch = sub.batch;
    info.q_begin = sub.q_begin;
    info.q_len = sub.q_len;
    info.valid_base = chunks;
    info.n_q_tiles = static_cast<int32_t>(ceil_div(sub.q_len, kRows));
    sub_info.push_back(info);
    sub_extra.push_back({chunks, capacity, sub.first_segment, states, sub.n_segments});
    max_chunks = std::max(max_chunks, capacity);
    max_q_tiles = std::max(max_q_tiles, int64_t{info.n_q_tiles});
    max_rank_groups = std::max(max_rank_groups, ceil_div(tokens, kRankGroup));
    tiles += info.n_q_tiles * h_q;
    blocks += capacity * h_kv;
    groups += info.mu_group_stride * h_kv;
    chunks += capacity;
    states += sub.n_segments;
  }

  const auto inside = [this](int64_t size_bytes) {
    const int64_t at = descriptor_bytes;
    descriptor_bytes += ceil_div(size_bytes, 16) * 16;
    return at;
  };
  descriptor_bytes = 0;
  inside(n_subs * static_cast<int64_t>(sizeof(SubInfo)));
  extra = inside(n_subs * static_cast<int64_t>(sizeof(SubExtra)));
  segments = inside(static_cast<int64_t>(request.segments.size() * sizeof(Segment)));
  zeros = inside(32);  // the image starts out as zeros
  if (request.rope != nullptr) rope = pack_rope(*request.rope, rope_values, rope_group_values);
  rope_table = inside(static_cast<int64_t>(rope_values.size() * 4));
  rope_groups = inside(static_cast<int64_t>(rope_group_values.size() * sizeof(AngleGroup)));

  descriptors = take(descriptor_bytes);

  // In time: scratch memory, then the tiles of K, V and the means, then those of Q. The passes over
  // K and V still read the order, and the energies are read behind them, so only tiles of Q may lie
  // there; everything else is done with before the first tile is written.
  shared = bytes;
  if (request.energy_removed != nullptr) {
    energy_rows = take(blocks * kRows * 4);
    energy_blocks = take(blocks * 4);
  }
  gathered_end = bytes;
  if (request.grouping.active()) {
    group.emplace(request.grouping,
                  group::Shape{sub_info, sub_extra, request.segments, h_kv, static_cast<int>(d)});
    grouping = take(group->bytes);
    gathered_end = grouping + group->order_end;
  }
  v_partial = take(groups * 2 * d * 4);
  k_partial = take(groups * d * 4);
  scratch_end = bytes;

  const auto d_int = static_cast<int>(d);
  bytes = shared;
  q_tiles = take(tiles * spec::t128_qk_tile_bytes(d_int));
  bytes = std::max(bytes, aligned(gathered_end));
  k_tiles = take(blocks * spec::t128_qk_tile_bytes(d_int));
  v_tiles = take(blocks * spec::t128_v_tile_bytes(d_int));
  mu_tiles = take(request.recipe->v_smooth() ? groups * spec::t128_mu_tile_bytes(d_int) : 0);
  bytes = std::max(bytes, scratch_end);

  q_unit = take(tiles * (kRows / 2) * 4);
  k_scale = take(blocks * 4 * 4);
  s_v = take(n_units * d * 4);
  exponent = take(n_heads * 4);
  if (request.lse) qk_offset = take(tiles * kRows * 4);
  segment_state = take(states * static_cast<int64_t>(sizeof(SegmentState)));
  chunk_rank = take(chunks * 4);
  n_valid = take(n_subs * 4);
  tokens = take(chunks * kRows * 4);
  block_valid = take(chunks * 4);
  block_rank = take(chunks * 4);
  k_offset = take(n_units * d * 4);
  v_abs_max = take(n_units * 4);
  v_factor = take(n_units * d * 4);
  if (request.recipe->qk == spec::QkFormat::e4m3_head) {
    k_head_max = take(n_units * 4);
    q_head_max = take(n_heads * 4);
  }
}

// Every key of every segment is valid, so the host knows how many there are.
inline bool all_keys_valid(const PrepParams& request) {
  return request.kv_lens == nullptr && request.key_mask == nullptr;
}

inline int64_t workspace_bytes(const PrepParams& request) { return Layout(request).bytes; }

// The descriptors as they lie at the start of the workspace.
inline std::vector<uint8_t> descriptor_image(const PrepParams& request, const Layout& layout) {
  std::vector<uint8_t> image(static_cast<size_t>(layout.descriptor_bytes));
  const auto put = [&image](int64_t at, const auto& from) {
    if (!from.empty()) std::memcpy(image.data() + at, from.data(), from.size() * sizeof(from[0]));
  };
  put(0, layout.sub_info);
  put(layout.extra, layout.sub_extra);
  put(layout.segments, request.segments);
  put(layout.rope_table, layout.rope_values);
  put(layout.rope_groups, layout.rope_group_values);
  return image;
}

// Rows in 16-byte pieces: base and strides allow it, the last piece ends with the row, and the
// distance of tokens fits 32 bits.
inline Tensor tensor_of(const spec::TensorView& t) {
  const int64_t bytes = spec::dtype_bytes(t.dtype), n = 16 / bytes;
  const auto stride = [&t](size_t i) { return t.shape[i] > 1 ? t.stride[i] : 0; };
  Tensor out{t.data, t.dtype, stride(0), stride(1), stride(2), false, 0};
  out.vectors = reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && out.stride_b % n == 0 &&
                out.stride_h % n == 0 && out.stride_s % n == 0 && t.shape[3] % n == 0 &&
                out.stride_s <= 0xFFFFFFFF / bytes;
  if (out.vectors) out.row_bytes = static_cast<uint32_t>(out.stride_s * bytes);
  return out;
}

inline void recipe_params(const spec::Recipe& r, Params& p) {
  p.e4m3_head = r.qk == spec::QkFormat::e4m3_head;
  p.plain_values = !r.v_smooth();
  p.offset_step = !r.k_mean ? 0 : r.k_mean_all_rows ? 1 : 16;
  p.code_max = r.qk == spec::QkFormat::int8 ? 127.0f : 448.0f;
}

// What the passes are given, with every pointer into the workspace.
inline Params device_params(const PrepParams& request, const Layout& layout, void* workspace) {
  auto* base = static_cast<uint8_t*>(workspace);
  const auto floats = [base](int64_t at) { return reinterpret_cast<float*>(base + at); };
  const auto ints = [base](int64_t at) { return reinterpret_cast<int32_t*>(base + at); };
  Params p{};
  p.q = tensor_of(request.q);
  p.k = tensor_of(request.k);
  p.v = tensor_of(request.v);
  p.rope = layout.rope;
  p.rope.table = floats(layout.rope_table);
  p.rope.groups = reinterpret_cast<const AngleGroup*>(base + layout.rope_groups);
  p.s_q = request.q.shape[2];
  p.s_kv = request.k.shape[2];
  p.h_q = static_cast<int32_t>(request.q.shape[1]);
  p.h_kv = static_cast<int32_t>(request.k.shape[1]);
  p.d = static_cast<int32_t>(request.q.shape[3]);
  p.d_pad = spec::padded_head_dim(p.d);
  p.d_pad_log2 = p.d_pad == 64 ? 6 : 7;
  p.n_subs = static_cast<int32_t>(request.subs.size());
  p.max_chunks = layout.max_chunks;
  p.max_q_tiles = layout.max_q_tiles;
  p.max_rank_groups = layout.max_rank_groups;
  p.by_h_q = make_divider(p.h_q);
  p.by_h_kv = make_divider(p.h_kv);
  p.by_group = make_divider(p.h_kv > 0 ? p.h_q / p.h_kv : 1);
  p.by_chunks = make_divider(layout.max_chunks);
  p.by_q_tiles = make_divider(layout.max_q_tiles);
  p.by_rank_groups = make_divider(layout.max_rank_groups);
  spec::Problem as_problem;
  as_problem.scale = request.scale;
  as_problem.hadamard = request.hadamard;
  as_problem.d_pad = p.d_pad;
  p.hadamard = request.hadamard;
  p.negate_q = as_problem.negate_q();
  p.code_scale = as_problem.code_scale();
  p.scale_f32 = static_cast<float>(request.scale);
  recipe_params(*request.recipe, p);
  p.kv_lens = request.kv_lens;
  p.key_mask = request.key_mask;
  p.order =
      layout.group.has_value() ? ints(layout.grouping + layout.group->out_order) : request.order;
  p.subs = reinterpret_cast<SubInfo*>(base + layout.descriptors);
  p.zeros = base + layout.zeros;
  p.extra = reinterpret_cast<const SubExtra*>(base + layout.extra);
  p.segments = reinterpret_cast<const Segment*>(base + layout.segments);
  p.segment_state = reinterpret_cast<SegmentState*>(base + layout.segment_state);
  p.chunk_rank = ints(layout.chunk_rank);
  p.n_valid = ints(layout.n_valid);
  p.tokens = ints(layout.tokens);
  p.block_valid = ints(layout.block_valid);
  p.block_rank = ints(layout.block_rank);
  p.k_offset = floats(layout.k_offset);
  p.k_partial = floats(layout.k_partial);
  p.v_partial = floats(layout.v_partial);
  p.v_abs_max = floats(layout.v_abs_max);
  p.v_factor = floats(layout.v_factor);
  if (p.e4m3_head) {
    p.k_head_max = floats(layout.k_head_max);
    p.q_head_max = floats(layout.q_head_max);
  }
  if (request.energy_removed != nullptr) {
    p.energy_rows = floats(layout.energy_rows);
    p.energy_blocks = floats(layout.energy_blocks);
    p.energy_removed = request.energy_removed;
  }
  p.q_tiles = base + layout.q_tiles;
  p.k_tiles = base + layout.k_tiles;
  p.v_tiles = base + layout.v_tiles;
  p.mu_tiles = base + layout.mu_tiles;
  p.q_unit = floats(layout.q_unit);
  p.k_scale = floats(layout.k_scale);
  p.s_v = floats(layout.s_v);
  p.exponent = ints(layout.exponent);
  p.qk_offset = request.lse ? floats(layout.qk_offset) : nullptr;
  return p;
}

// The attention kernel's view of a prepared workspace. The caller adds o, its strides and type, and
// lse.
inline AttentionParams attention_params(const PrepParams& request, const void* workspace) {
  const Layout layout(request);
  const Params from = device_params(request, layout, const_cast<void*>(workspace));
  AttentionParams p{};
  p.q_tiles = from.q_tiles;
  p.k_tiles = from.k_tiles;
  p.v_tiles = from.v_tiles;
  p.mu_tiles = from.mu_tiles;
  p.q_unit = from.q_unit;
  p.k_scale = from.k_scale;
  p.s_v = from.s_v;
  p.block_valid = from.block_valid;
  p.exponent = from.exponent;
  p.qk_offset = from.qk_offset;
  p.subs = from.subs;
  p.lse_s = from.s_q;
  p.n_subs = from.n_subs;
  p.h_q = from.h_q;
  p.h_kv = from.h_kv;
  p.max_q_tiles = static_cast<int32_t>(layout.max_q_tiles);
  p.head_dim = from.d;
  p.top = request.recipe->top;
  p.log_p_max = static_cast<float>(std::log(spec::p_of_maximum(*request.recipe)));
  for (uint32_t k = 0; k < 128; ++k) p.exp2_fraction[k] = spec::exp2_code_fraction(k);
  return p;
}

// True when no sub-problem can turn out to be empty, so that zero_rows has nothing to do.
inline bool never_empty(const PrepParams& request) {
  if (!all_keys_valid(request)) return false;
  const Layout layout(request);
  return std::all_of(layout.sub_extra.begin(), layout.sub_extra.end(),
                     [](const SubExtra& e) { return e.capacity > 0; });
}

}  // namespace vca::kernels::prep
