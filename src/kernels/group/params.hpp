// SPDX-License-Identifier: Apache-2.0
// What the grouping kernels are given, and how a flat index becomes a piece of work.
//
//   unit       (sub-problem, kv head); carries a group state
//   problem    (segment of a sub-problem, kv head); what is grouped
//   row        a token of a unit: rows + rank, rank among the unit's valid tokens. The
//   specification
//              calls ranks "local token numbers". Rows of a unit start at 128 times its first kv
//              block, so rows and places of the gathered order number alike.
//   block      kv block: 128 places of the gathered order
//   vector     centroid or block mean c of a problem lies at block index blocks + c
#pragma once

#include <cstdint>

#include "core/policy.hpp"
#include "kernels/common/params.hpp"
#include "kernels/prep/params.hpp"
#include "spec/grouping/grouping.hpp"

namespace vca::kernels::group {

using prep::ceil_div;
using prep::min_i64;

inline constexpr int kRows = 128;
inline constexpr int kHistogramRows = 2048;  // rows of one histogram
inline constexpr int kListed = 16;
inline constexpr int kSigmaParts = 16;  // of the 2,048 rows of which sigma is taken
inline constexpr int kPairMemory = 6;   // GroupingParams::pair_memory

// A segment of a sub-problem, from shapes only.
struct Entry {
  int64_t sub;
  int64_t state;      // in segment_state
  int64_t capacity;   // blocks
  int64_t labels;     // buckets a counting sort may need
  int64_t histogram;  // of kv head 0
  int64_t histogram_stride;
  // Cubes: the segment's first token, and the grid; 0: not a grid of cubes.
  int64_t begin, grid_h, grid_w;
};

enum class Start : int32_t { cold, warm, keep, identity };

// What a unit is about to do and what is known about it.
struct Unit {
  Start start;
  int32_t used;    // spec::Grouping
  int32_t passes;  // of pair exchange
  double f;
};

struct UnitState {
  int64_t last_call_step = -1;
  int64_t step = -1;  // of the last grouping
  double f_at_grouping = 0, f_last = 0;
  uint64_t fingerprint = 0;  // of the valid tokens
  int32_t has_order = 0;
  int32_t used = 0;
};
// State: StateHeader | UnitState[units] | int32 ranks[places], each part 256-byte aligned.
struct StateHeader {
  uint64_t magic;
  uint64_t problem;  // hash of what the state depends on
  int64_t units, bytes;
};
inline constexpr uint64_t kStateMagic = 0x3244534741434156u;  // "VACAGSD2"

struct Params {
  prep::Tensor v;
  int32_t h_kv, d, d_pad, n_subs;
  int64_t n_units, n_problems;
  int64_t max_blocks;  // of a problem
  int64_t max_unit_blocks;
  int64_t max_labels;

  const SubInfo* subs;
  const prep::SubExtra* extra;
  const prep::SegmentState* segment_state;
  const int32_t* n_valid;  // [sub]
  const int32_t* tokens;   // [chunk][128] by rank
  const Entry* entries;

  spec::Grouping kind;
  int32_t iterations, large_iterations, sample_min, sample_divisor;
  int32_t cold_passes, followed_passes, warm_passes, rounds, inner;
  int32_t sigma_rows, axes_rows, axes_iterations;
  double warm_share;

  // Group state; null: every call starts cold.
  StateHeader* state;
  UnitState* unit_state;
  int32_t* state_order;
  uint64_t state_hash;
  core::Policy policy;
  const int32_t* step;
  bool fixed_tokens;  // neither lengths nor masks: the valid tokens cannot change

  Unit* units;
  float* sigma_parts;        // [unit][2][kSigmaParts] largest magnitudes, sums of squares
  prep::TokenScale* scales;  // [unit]
  int32_t* any_cold;         // whether a unit starts cold: most kernels end at once where none does
  int32_t* any_warm;         // the same of a warm start, as Decide left it
  int32_t* most_passes;      // of pair exchange, over the units
  uint8_t* token_wanted;     // [unit] whether an order is formed from its values
  uint64_t* fingerprint;     // [sub]
  int8_t* values;            // [row][d_pad]
  int32_t* order;            // [place] rank
  int32_t* labels;           // [row]
  int8_t* axes;              // [unit][kAxes][d_pad]
  int32_t* projections;      // [row][kAxes], kdtree only
  int8_t* centroids;         // [block][d_pad]
  int32_t* bucket;           // [block] place of centroid c in the chain
  int32_t* histogram;
  int32_t* lists;           // [block][kListed] nearest neighbours, distances.hpp
  int32_t* sums;            // [block][d_pad]
  int8_t* means;            // [block][d_pad]
  int64_t* norm2;           // [block] of the sum
  int32_t* energy;          // [block] sum of squares
  int64_t* watched_norm2;   // [block] the same two of the watched blocks of the resulting order
  int32_t* watched_energy;  // [block]
  int32_t* tried;           // [block][kPairMemory]
  int32_t* proposals;       // [block] its nearest block, of the first round
  int32_t* pairs;           // [block] a, b, a, b, ...
  int32_t* n_pairs;         // [problem]

  int32_t* out_order;  // [place] token
  uint8_t* regrouped;  // [batch][kv head] or null
};

// An index of pieces of work, `parts` to a whole. There are fewer than 2^31: each stands for 16 KiB
// of memory or more. Divisions in 64 bits would cost more than the work on some pieces.
struct Piece {
  int32_t whole, part;
};
VCA_DEVICE Piece piece_of(int64_t index, int64_t parts) {
  const auto whole = static_cast<uint32_t>(index) / static_cast<uint32_t>(parts);
  return {static_cast<int32_t>(whole), static_cast<int32_t>(static_cast<uint32_t>(index) -
                                                            whole * static_cast<uint32_t>(parts))};
}

struct Problem {
  int64_t index, unit, sub, head;
  int64_t row0;    // row of its first token
  int64_t block0;  // its first block
  int32_t rank0;   // rank of its first token
  int32_t n, k, full;
  int32_t passes;
  Start start;
};

VCA_DEVICE int64_t rows_of(const Params& p, int64_t sub, int64_t head) {
  return (p.subs[sub].kv_block_base + head * p.subs[sub].kv_block_stride) * kRows;
}

VCA_DEVICE Problem problem_at(const Params& p, int64_t index) {
  const Piece at = piece_of(index, p.h_kv);
  const Entry& e = p.entries[at.whole];
  Problem out;
  out.index = index;
  out.sub = e.sub;
  out.head = at.part;
  out.unit = e.sub * p.h_kv + out.head;
  const prep::SegmentState s = p.segment_state[e.state];
  const int64_t rows = rows_of(p, out.sub, out.head);
  out.row0 = rows + s.rank0;
  out.block0 = rows / kRows + s.block0;
  out.rank0 = s.rank0;
  out.n = s.count;
  out.k = static_cast<int32_t>(ceil_div(s.count, kRows));
  out.full = s.count / kRows;
  out.start = p.units[out.unit].start;
  out.passes = p.units[out.unit].passes;
  return out;
}
VCA_DEVICE int32_t* histogram_of(const Params& p, const Problem& x) {
  const Entry& e = p.entries[piece_of(x.index, p.h_kv).whole];
  return p.histogram + e.histogram + x.head * e.histogram_stride;
}

// Whether an order is formed, or looked for in the old one: both need all values as tokens.
VCA_DEVICE bool forms_order(Start start) { return start == Start::cold || start == Start::warm; }
// Ranks of the places before StoreOrder; a kept order stays where it is.
VCA_DEVICE const int32_t* ranks_of(const Params& p, const Problem& x) {
  return x.start == Start::keep ? p.state_order : p.order;
}

// Which problems form a new order by assignment to centroids.
VCA_DEVICE bool clusters(const Params& p, const Problem& x) {
  return x.start == Start::cold && x.n > kRows &&
         (p.kind == spec::Grouping::vsmooth || p.kind == spec::Grouping::kmeans);
}
VCA_DEVICE int32_t sample_size(const Params& p, const Problem& x) {
  if (p.kind == spec::Grouping::kmeans) return x.n;
  const int64_t part = ceil_div(x.n, p.sample_divisor);
  return static_cast<int32_t>(min_i64(x.n, part > p.sample_min ? part : p.sample_min));
}
// Of k-means over the sample.
VCA_DEVICE int32_t iterations_of(const Params& p, const Problem& x) {
  const bool large = p.kind == spec::Grouping::vsmooth && sample_size(p, x) > p.sample_min;
  return large ? p.large_iterations : p.iterations;
}
// No problem has a larger sample.
constexpr int64_t max_sample(const Params& p, int64_t rows) {
  if (p.kind == spec::Grouping::kmeans) return rows;
  const int64_t part = ceil_div(rows, p.sample_divisor);
  const int64_t size = part > p.sample_min ? part : p.sample_min;
  return size < rows ? size : rows;
}
// Row i of a strided sample of m out of n.
VCA_DEVICE int64_t sample_row(int64_t i, int64_t n, int64_t m) { return m == n ? i : i * n / m; }
// Whether pass number `pass` runs for the problem.
VCA_DEVICE bool exchanges(const Problem& x, int32_t pass) { return x.full >= 2 && pass < x.passes; }

}  // namespace vca::kernels::group
