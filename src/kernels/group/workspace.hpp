// SPDX-License-Identifier: Apache-2.0
// Grouping seen from the host: what is asked for, and where everything lies in the scratch memory
// and in the caller's group state. Sizes depend on shapes and segments only; the formulas are
// tables in README.md.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/group/params.hpp"
#include "spec/grouping/axes.hpp"

namespace vca::kernels::group {

// What to form, and the caller's state. Pointers are the device's.
struct Request {
  spec::Grouping kind = spec::Grouping::identity;
  std::array<int64_t, 3> grid{0, 0, 0};  // of video segments, for cubes
  std::vector<bool> video;               // by segment
  void* state = nullptr;                 // 256-byte aligned
  uint64_t state_hash = 0;
  core::Policy policy;
  const int32_t* step = nullptr;
  uint8_t* regrouped = nullptr;  // [batch][kv head], cleared by the caller

  // Token order every time needs no pass.
  bool active() const { return kind != spec::Grouping::identity || state != nullptr; }
};

// Groupings with kernels; `automatic` is vsmooth.
inline bool supports(spec::Grouping kind) {
  return kind == spec::Grouping::identity || kind == spec::Grouping::kdtree ||
         kind == spec::Grouping::cubes || kind == spec::Grouping::kmeans ||
         kind == spec::Grouping::vsmooth || kind == spec::Grouping::automatic;
}

// Parts of a grouping: preprocessing puts its own pass over V, which writes the tokens, between the
// first and the last.
enum class Part {
  scales,            // of the tokens
  tokens_and_order,  // where that pass does not write them
  order,
  all,
};

// What the layout needs to know of a call.
struct Shape {
  const std::vector<SubInfo>& subs;
  const std::vector<prep::SubExtra>& extra;
  const std::vector<prep::Segment>& segments;
  int64_t h_kv;
  int d_pad;
};

inline constexpr int64_t kAlign_bytes = 256;
// Counters of a counting sort, for each of 8 warps, must fit shared memory.
inline constexpr int64_t kMaxLabels = 7000;

inline int64_t aligned(int64_t bytes) { return ceil_div(bytes, kAlign_bytes) * kAlign_bytes; }

struct StateLayout {
  int64_t n_units, units, order, bytes;
  StateLayout(int64_t number_of_units, int64_t places)
      : n_units(number_of_units),
        units(kAlign_bytes),
        order(units + aligned(n_units * static_cast<int64_t>(sizeof(UnitState)))),
        bytes(order + aligned(places * 4)) {}
};

struct Layout {
  Layout(const Request& request, const Shape& shape);

  std::vector<Entry> entries;
  int64_t n_units = 0, n_problems = 0, places = 0;
  int64_t max_blocks = 0, max_unit_blocks = 0, max_labels = 1;
  int64_t out_order, table, units, sigma_parts, scales, any_cold, any_warm, most_passes,
      token_wanted, fingerprint, values, order, labels, axes, projections, centroids, bucket,
      histogram, lists, sums, means, norm2, energy, watched_norm2, watched_energy, tried, proposals,
      pairs, n_pairs;
  // The resulting order comes first. What lies behind it, from order_end on, is read by the kernels
  // of a grouping only: memory for others once they are done.
  int64_t order_end = 0, bytes = 0;

 private:
  int64_t take(int64_t size_bytes) {
    const int64_t at = bytes;
    bytes += aligned(size_bytes);
    return at;
  }
};

inline Layout::Layout(const Request& request, const Shape& shape) {
  const int64_t h = shape.h_kv;
  int64_t blocks = 0, histograms = 0;
  for (size_t i = 0; i < shape.subs.size(); ++i) {
    const prep::SubExtra& extra = shape.extra[i];
    blocks += extra.capacity * h;
    max_unit_blocks = std::max(max_unit_blocks, extra.capacity);
    for (int64_t s = 0; s < extra.n_segments; ++s) {
      const auto index = static_cast<size_t>(extra.first_segment + s);
      const prep::Segment& segment = shape.segments[index];
      Entry e{};
      e.sub = static_cast<int64_t>(i);
      e.state = extra.state_base + s;
      e.capacity = ceil_div(segment.len, kRows);
      e.labels = e.capacity;
      e.begin = segment.begin;
      const auto& g = request.grid;
      const bool cubes = request.kind == spec::Grouping::cubes && request.video[index] &&
                         g[0] * g[1] * g[2] == segment.len && segment.len > 0;
      if (cubes) {
        e.grid_h = g[1];
        e.grid_w = g[2];
        e.labels = ceil_div(g[0], 4) * ceil_div(g[1], 4) * ceil_div(g[2], 8);
      }
      e.histogram = histograms;
      e.histogram_stride = request.kind == spec::Grouping::identity ||
                                   request.kind == spec::Grouping::kdtree ||
                                   (request.kind == spec::Grouping::cubes && !cubes)
                               ? 0
                               : ceil_div(e.capacity * kRows, kHistogramRows) * e.labels;
      histograms += e.histogram_stride * h;
      max_blocks = std::max(max_blocks, e.capacity);
      if (e.histogram_stride > 0) max_labels = std::max(max_labels, e.labels);
      entries.push_back(e);
    }
  }
  n_units = static_cast<int64_t>(shape.subs.size()) * h;
  n_problems = static_cast<int64_t>(entries.size()) * h;
  places = blocks * kRows;
  const int64_t d = shape.d_pad;
  out_order = take(places * 4);
  order_end = bytes;
  table = take(static_cast<int64_t>(entries.size() * sizeof(Entry)));
  units = take(n_units * static_cast<int64_t>(sizeof(Unit)));
  sigma_parts = take(n_units * 2 * kSigmaParts * 4);
  scales = take(n_units * static_cast<int64_t>(sizeof(prep::TokenScale)));
  any_cold = take(4);
  any_warm = take(4);
  most_passes = take(4);
  token_wanted = take(n_units);
  fingerprint = take(static_cast<int64_t>(shape.subs.size()) * 8);
  values = take(places * d);
  order = take(places * 4);
  labels = take(places * 4);
  const bool tree = request.kind == spec::Grouping::kdtree;
  axes = take(tree ? n_units * spec::grouping::kAxes * d : 0);
  projections = take(tree ? places * spec::grouping::kAxes * 4 : 0);
  centroids = take(blocks * d);
  bucket = take(blocks * 4);
  histogram = take(histograms * 4);
  lists = take(blocks * kListed * 4);
  sums = take(blocks * d * 4);
  means = take(blocks * d);
  norm2 = take(blocks * 8);
  energy = take(blocks * 4);
  watched_norm2 = take(blocks * 8);
  watched_energy = take(blocks * 4);
  tried = take(blocks * kPairMemory * 4);
  proposals = take(blocks * 4);
  pairs = take(blocks * 4);
  n_pairs = take(n_problems * 4);
}

inline std::vector<uint8_t> table_image(const Layout& layout) {
  static_assert(sizeof(Entry) % 4 == 0);
  const auto* first = reinterpret_cast<const uint8_t*>(layout.entries.data());
  return {first, first + layout.entries.size() * sizeof(Entry)};
}

// What the kernels are given. `from` is what preprocessing knows after it has counted the tokens.
inline Params device_params(const Request& request, const Layout& layout, const prep::Params& from,
                            void* scratch) {
  auto* base = static_cast<uint8_t*>(scratch);
  const auto ints = [base](int64_t at) { return reinterpret_cast<int32_t*>(base + at); };
  const auto bytes = [base](int64_t at) { return reinterpret_cast<int8_t*>(base + at); };
  const spec::GroupingParams constants;
  Params p{};
  p.v = from.v;
  p.h_kv = from.h_kv;
  p.d = from.d;
  p.d_pad = from.d_pad;
  p.n_subs = from.n_subs;
  p.n_units = layout.n_units;
  p.n_problems = layout.n_problems;
  p.max_blocks = layout.max_blocks;
  p.max_unit_blocks = layout.max_unit_blocks;
  p.max_labels = layout.max_labels;
  p.subs = from.subs;
  p.extra = from.extra;
  p.segment_state = from.segment_state;
  p.n_valid = from.n_valid;
  p.tokens = from.tokens;
  p.entries = reinterpret_cast<const Entry*>(base + layout.table);
  p.kind = request.kind;
  const bool kmeans = p.kind == spec::Grouping::kmeans;
  const bool exchanges = p.kind == spec::Grouping::vsmooth || p.kind == spec::Grouping::kdtree;
  p.iterations = kmeans ? constants.kmeans_iterations : constants.vsmooth_iterations;
  p.large_iterations = constants.vsmooth_large_iterations;
  p.sample_min = constants.vsmooth_sample_min;
  p.sample_divisor = constants.vsmooth_sample_divisor;
  p.cold_passes = exchanges ? constants.pair_passes : 0;
  p.followed_passes = exchanges ? constants.followed_pair_passes : 0;
  p.warm_passes = exchanges ? constants.warm_pair_passes : 0;
  p.rounds = constants.pair_rounds;
  p.inner = constants.pair_inner;
  p.sigma_rows = constants.sigma_sample_rows;
  p.axes_rows = constants.axes_sample_rows;
  p.axes_iterations = constants.axes_iterations;
  p.warm_share = constants.warm_share;
  if (request.state != nullptr) {
    const StateLayout state(layout.n_units, layout.places);
    auto* at = static_cast<uint8_t*>(request.state);
    p.state = reinterpret_cast<StateHeader*>(at);
    p.unit_state = reinterpret_cast<UnitState*>(at + state.units);
    p.state_order = reinterpret_cast<int32_t*>(at + state.order);
    p.state_hash = request.state_hash;
    p.policy = request.policy;
    p.step = request.step;
  }
  p.fixed_tokens = from.kv_lens == nullptr && from.key_mask == nullptr;
  p.units = reinterpret_cast<Unit*>(base + layout.units);
  p.sigma_parts = reinterpret_cast<float*>(base + layout.sigma_parts);
  p.scales = reinterpret_cast<prep::TokenScale*>(base + layout.scales);
  p.any_cold = ints(layout.any_cold);
  p.any_warm = ints(layout.any_warm);
  p.most_passes = ints(layout.most_passes);
  p.token_wanted = base + layout.token_wanted;
  p.fingerprint = reinterpret_cast<uint64_t*>(base + layout.fingerprint);
  p.values = bytes(layout.values);
  p.order = ints(layout.order);
  p.labels = ints(layout.labels);
  p.axes = bytes(layout.axes);
  p.projections = ints(layout.projections);
  p.centroids = bytes(layout.centroids);
  p.bucket = ints(layout.bucket);
  p.histogram = ints(layout.histogram);
  p.lists = ints(layout.lists);
  p.sums = ints(layout.sums);
  p.means = bytes(layout.means);
  p.norm2 = reinterpret_cast<int64_t*>(base + layout.norm2);
  p.energy = ints(layout.energy);
  p.watched_norm2 = reinterpret_cast<int64_t*>(base + layout.watched_norm2);
  p.watched_energy = ints(layout.watched_energy);
  p.tried = ints(layout.tried);
  p.proposals = ints(layout.proposals);
  p.pairs = ints(layout.pairs);
  p.n_pairs = ints(layout.n_pairs);
  p.out_order = ints(layout.out_order);
  p.regrouped = request.regrouped;
  return p;
}

}  // namespace vca::kernels::group
