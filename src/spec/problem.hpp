// SPDX-License-Identifier: Apache-2.0
// A validated attention problem, as the specification sees it: typed strided views, resolved recipe
// and grouping, and the list of independent sub-problems (one a batch, or one a sequence of a
// ragged batch).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "spec/recipe.hpp"
#include "spec/rope.hpp"

namespace vca::spec {

// Numbers equal vca_dtype.
enum class DType : int32_t { bf16 = 0, fp16 = 1, fp32 = 2 };

constexpr int64_t dtype_bytes(DType t) { return t == DType::fp32 ? 4 : 2; }

// Borrowed view [B, H, S, D]; strides in elements, the last one is 1.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::bf16;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> stride{};

  // Row (b, h, s) as FP32, shape[3] values.
  void load_row(int64_t b, int64_t h, int64_t s, float* out) const;
};

// Valid key tokens of one sub-problem, ascending within each segment; segments in order. A segment
// without a valid token is left out.
struct SubProblem {
  int64_t batch = 0;
  int64_t q_begin = 0, q_len = 0;  // query rows that attend to these keys
  std::vector<std::vector<int64_t>> segments;
  std::vector<Segment> segment_info;  // the original range and kind, same length as `segments`

  int64_t n_valid() const {
    int64_t n = 0;
    for (const auto& s : segments) n += static_cast<int64_t>(s.size());
    return n;
  }
  // Every segment starts a fresh block and its tail block is padded.
  int64_t n_blocks() const {
    int64_t n = 0;
    for (const auto& s : segments) n += (static_cast<int64_t>(s.size()) + kBlock - 1) / kBlock;
    return n;
  }
};

constexpr int padded_head_dim(int d) { return d <= 64 ? 64 : 128; }

struct Problem {
  TensorView q, k, v;
  int64_t batches = 0, h_q = 0, h_kv = 0, s_q = 0, s_kv = 0;
  int d = 0;      // head_dim given
  int d_pad = 0;  // 64 or 128
  double scale = 0;
  const Recipe* recipe = nullptr;
  Grouping grouping = Grouping::identity;
  bool hadamard = false;
  Rope rope;
  std::array<int64_t, 3> grid{};
  std::vector<SubProblem> subs;
  // Optional block mask [batches][h_q][ceil(s_q/128)][ceil(s_kv/128)], 1 = attend, by token order
  // whatever the grouping (docs/numerics.md D5).
  const uint8_t* block_mask = nullptr;

  int64_t mask_blocks_q() const { return (s_q + kBlock - 1) / kBlock; }
  int64_t mask_blocks_kv() const { return (s_kv + kBlock - 1) / kBlock; }
  // Row of the mask for a query row, by block of keys; null without a mask.
  const uint8_t* mask_row(int64_t batch, int64_t q_head, int64_t row) const {
    if (block_mask == nullptr) return nullptr;
    return block_mask +
           ((batch * h_q + q_head) * mask_blocks_q() + row / kBlock) * mask_blocks_kv();
  }

  // The three views, and all that follows from their shapes: sizes, padding, the default scale
  // 1/sqrt(d).
  void set_tensors(const TensorView& query, const TensorView& key, const TensorView& value);

  int64_t kv_head(int64_t q_head) const { return q_head / (h_q / h_kv); }
  // RN(8 log2(e) |scale|), with the Hadamard's 1/d_pad folded in: code units per unit of q.k. The
  // sign of `scale` goes into Q.
  float code_scale() const;
  bool negate_q() const { return scale < 0; }
};

}  // namespace vca::spec
