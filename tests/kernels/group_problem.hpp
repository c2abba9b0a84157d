// SPDX-License-Identifier: Apache-2.0
// Grouping cases for the emulator test and the device test: values, valid tokens, what
// preprocessing knows when grouping begins, and what the specification makes of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/policy.hpp"
#include "kernels/group/workspace.hpp"
#include "kernels/packed_problem.hpp"
#include "spec/grouping/grouping.hpp"

namespace vca::tests {

enum class Values { clusters, noise, identical, few_distinct, one_outlier, zeros, not_finite };

struct GroupCase {
  const char* name;
  spec::Grouping kind = spec::Grouping::vsmooth;
  std::vector<int64_t> lens = {1000};  // segments; the first is video, the others text
  int64_t b = 1, h = 1;
  int d = 128;
  spec::DType dtype = spec::DType::bf16;
  Values values = Values::clusters;
  bool mask = false;
  bool sequences = false;  // each segment a sub-problem of its own
  std::array<int64_t, 3> grid{0, 0, 0};
  int64_t odd_stride = 0;  // added to the row pitch
};

// The values of step `step`: the same signal under noise of its own.
class GroupProblem {
 public:
  explicit GroupProblem(const GroupCase& c) : shape(c) {
    for (const int64_t len : c.lens) {
      segments.push_back({s_kv, len});
      s_kv += len;
    }
    Random rng(static_cast<uint64_t>(s_kv * 131 + c.d));
    for (int64_t b = 0; b < c.b; ++b)
      for (int64_t t = 0; t < s_kv; ++t)
        valid.push_back(!c.mask || (b == 1 && t % 700 > 500) || rng.next() % 5 != 0 ? 1 : 0);
    make_subs();
    rank_tokens();
    set_values(0, 0.6);
  }
  GroupProblem(const GroupProblem&) = delete;
  GroupProblem& operator=(const GroupProblem&) = delete;

  void set_values(uint64_t step, double noise);
  // From now on all keys are valid, but of batch `b` none.
  void leave_out_keys_of(int64_t b) {
    for (int64_t i = 0; i < shape.b * s_kv; ++i)
      valid[static_cast<size_t>(i)] = i / s_kv == b ? 0 : 1;
    rank_tokens();
  }

  // What preprocessing hands over; pointers into host memory.
  kernels::prep::Params params() const {
    kernels::prep::Params p{};
    p.v.data = bytes.data();
    p.v.dtype = shape.dtype;
    p.v.stride_b = shape.h * s_kv * pitch();
    p.v.stride_h = s_kv * pitch();
    p.v.stride_s = pitch();
    p.s_kv = s_kv;
    p.h_kv = static_cast<int32_t>(shape.h);
    p.d = shape.d;
    p.d_pad = shape.d <= 64 ? 64 : 128;
    p.n_subs = static_cast<int32_t>(subs.size());
    p.key_mask = shape.mask ? valid.data() : nullptr;
    p.subs = const_cast<kernels::SubInfo*>(subs.data());
    p.extra = extra.data();
    p.segment_state = const_cast<kernels::prep::SegmentState*>(segment_state.data());
    p.n_valid = const_cast<int32_t*>(n_valid.data());
    p.tokens = const_cast<int32_t*>(tokens.data());
    return p;
  }
  kernels::group::Request request() const {
    kernels::group::Request r;
    r.kind = shape.kind == spec::Grouping::automatic ? spec::Grouping::vsmooth : shape.kind;
    r.grid = shape.grid;
    for (size_t i = 0; i < segments.size(); ++i) r.video.push_back(i == 0);
    return r;
  }
  kernels::group::Shape layout_shape() const {
    return {subs, extra, segments, shape.h, shape.d <= 64 ? 64 : 128};
  }

  spec::GroupingInput input(size_t sub, int64_t head) const {
    spec::GroupingInput in;
    in.n_tokens = s_kv;
    in.head_dim = shape.d;
    in.grid = shape.grid;
    const int64_t batch = subs[sub].batch;
    in.row = [this, batch, head](int64_t token, float* out) {
      const int64_t at = ((batch * shape.h + head) * s_kv + token) * pitch();
      for (int64_t i = 0; i < shape.d; ++i) out[i] = element(at + i);
    };
    const kernels::prep::SubExtra& e = extra[sub];
    for (int64_t s = 0; s < e.n_segments; ++s) {
      const auto index = static_cast<size_t>(e.first_segment + s);
      const auto& state = segment_state[static_cast<size_t>(e.state_base + s)];
      const int32_t* first = tokens.data() + e.chunk_base * 128 + state.rank0;
      in.valid_by_segment.emplace_back(first, first + state.count);
      in.segments.push_back({segments[index].begin, segments[index].len, index == 0 ? 0 : 1});
    }
    return in;
  }

  GroupCase shape;
  int64_t s_kv = 0;
  std::vector<uint8_t> bytes;  // values [b][h][s][pitch]
  std::vector<uint8_t> valid;  // [b][s]
  std::vector<kernels::prep::Segment> segments;
  std::vector<kernels::SubInfo> subs;
  std::vector<kernels::prep::SubExtra> extra;
  std::vector<kernels::prep::SegmentState> segment_state;
  std::vector<int32_t> n_valid, tokens;

 private:
  int64_t pitch() const { return shape.d + shape.odd_stride; }
  float element(int64_t at) const;
  void put(int64_t at, float x);
  void make_subs();
  void rank_tokens();
};

inline float GroupProblem::element(int64_t at) const {
  if (shape.dtype == spec::DType::fp32) {
    float x;
    std::memcpy(&x, &bytes[static_cast<size_t>(at) * 4], 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, &bytes[static_cast<size_t>(at) * 2], 2);
  return shape.dtype == spec::DType::bf16 ? spec::bf16_decode(bits) : spec::fp16_decode(bits);
}

inline void GroupProblem::put(int64_t at, float x) {
  if (shape.dtype == spec::DType::fp32) {
    std::memcpy(&bytes[static_cast<size_t>(at) * 4], &x, 4);
    return;
  }
  const uint16_t bits =
      shape.dtype == spec::DType::bf16 ? spec::bf16_encode(x) : spec::fp16_encode_sat(x);
  std::memcpy(&bytes[static_cast<size_t>(at) * 2], &bits, 2);
}

inline void GroupProblem::set_values(uint64_t step, double noise) {
  const GroupCase& c = shape;
  bytes.assign(static_cast<size_t>(c.b * c.h * s_kv * pitch() + 16) *
                   static_cast<size_t>(spec::dtype_bytes(c.dtype)),
               0);
  if (c.values == Values::zeros) return;
  const uint64_t kinds = c.values == Values::few_distinct ? 3 : 23;
  for (int64_t bh = 0; bh < c.b * c.h; ++bh) {
    Random signal(static_cast<uint64_t>(bh) + 5),
        random(static_cast<uint64_t>(bh) + 1000 * step + 99);
    std::vector<float> centers(kinds * static_cast<size_t>(c.d));
    for (float& x : centers) x = static_cast<float>(signal.normal());
    for (int64_t t = 0; t < s_kv; ++t) {
      const uint64_t cluster = signal.next() % kinds;
      for (int64_t i = 0; i < c.d; ++i) {
        auto x = centers[cluster * static_cast<size_t>(c.d) + static_cast<size_t>(i)];
        if (c.values == Values::noise) x = 0.0f;
        if (c.values == Values::identical) x = centers[static_cast<size_t>(i)];
        if (c.values == Values::clusters || c.values == Values::noise ||
            c.values == Values::one_outlier || c.values == Values::not_finite)
          x += static_cast<float>(noise * random.normal());
        if (c.values == Values::one_outlier && t == s_kv / 3) x *= 1e4f;
        if (c.values == Values::not_finite && bh == 0 && (t * c.d + i) % 97 == 5)
          x = i % 2 == 0 ? NAN : INFINITY;
        put((bh * s_kv + t) * pitch() + i, x);
      }
    }
  }
}

inline void GroupProblem::make_subs() {
  const GroupCase& c = shape;
  int64_t blocks = 0, chunks = 0, states = 0;
  const auto n = static_cast<int64_t>(segments.size());
  for (int64_t b = 0; b < c.b; ++b)
    for (int64_t first = 0; first < n; first += c.sequences ? 1 : n) {
      const int64_t count = c.sequences ? 1 : n;
      int64_t capacity = 0;
      for (int64_t s = first; s < first + count; ++s)
        capacity += (segments[static_cast<size_t>(s)].len + 127) / 128;
      kernels::SubInfo info{};
      info.kv_block_base = blocks;
      info.kv_block_stride = capacity;
      info.batch = b;
      subs.push_back(info);
      extra.push_back({chunks, capacity, first, states, count});
      blocks += capacity * c.h;
      chunks += capacity;
      states += count;
    }
  tokens.resize(static_cast<size_t>(chunks) * 128, -1);
  segment_state.resize(static_cast<size_t>(states));
}

inline void GroupProblem::rank_tokens() {
  n_valid.clear();
  for (size_t i = 0; i < subs.size(); ++i) {
    const kernels::prep::SubExtra& e = extra[i];
    int32_t rank = 0, block = 0;
    for (int64_t s = 0; s < e.n_segments; ++s) {
      const auto& segment = segments[static_cast<size_t>(e.first_segment + s)];
      kernels::prep::SegmentState state{block, rank, 0};
      for (int64_t t = segment.begin; t < segment.begin + segment.len; ++t) {
        if (valid[static_cast<size_t>(subs[i].batch * s_kv + t)] == 0) continue;
        tokens[static_cast<size_t>(e.chunk_base * 128 + rank)] = static_cast<int32_t>(t);
        ++rank;
        ++state.count;
      }
      block += (state.count + 127) / 128;
      segment_state[static_cast<size_t>(e.state_base + s)] = state;
    }
    n_valid.push_back(rank);
    subs[i].n_blocks = block;
  }
}

// The first place at which an order on the host differs from the specification's; "" when none.
inline std::string compare_order(const GroupProblem& problem, size_t sub, int64_t head,
                                 const std::vector<std::vector<int64_t>>& expected,
                                 const int32_t* out_order) {
  const kernels::SubInfo& info = problem.subs[sub];
  const kernels::prep::SubExtra& e = problem.extra[sub];
  for (size_t s = 0; s < expected.size(); ++s) {
    const auto& state = problem.segment_state[static_cast<size_t>(e.state_base) + s];
    const int64_t place0 = (info.kv_block_base + head * info.kv_block_stride + state.block0) * 128;
    for (size_t i = 0; i < expected[s].size(); ++i)
      if (out_order[place0 + static_cast<int64_t>(i)] != expected[s][i])
        return "sub-problem " + std::to_string(sub) + ", head " + std::to_string(head) +
               ", segment " + std::to_string(s) + ", place " + std::to_string(i) + ": token " +
               std::to_string(out_order[place0 + static_cast<int64_t>(i)]) + ", expected " +
               std::to_string(expected[s][i]);
  }
  return "";
}

// What the CPU backend does over the steps: policy, history and state of every unit.
class PolicyReference {
 public:
  PolicyReference(const GroupProblem& problem, const core::Policy& policy)
      : problem_(problem),
        policy_(policy),
        units_(problem.subs.size() * static_cast<size_t>(problem.shape.h)) {}

  struct Unit {
    core::HeadHistory history;
    spec::HeadState state;
    std::vector<std::vector<int64_t>> order;
    double f = 0;
    bool regrouped = false;
  };
  // The values of the problem as they are now.
  void run(int64_t step) {
    for (size_t u = 0; u < units_.size(); ++u) {
      const auto h = static_cast<size_t>(problem_.shape.h);
      const spec::GroupingInput input = problem_.input(u / h, static_cast<int64_t>(u % h));
      run_unit(units_[u], input, step);
    }
  }
  const Unit& unit(size_t i) const { return units_[i]; }

 private:
  void run_unit(Unit& u, const spec::GroupingInput& input, int64_t step) const {
    spec::GroupingParams params;
    params.kind = problem_.shape.kind;
    core::HeadHistory& history = u.history;
    const auto empty = [](const std::vector<int64_t>& tokens) { return tokens.empty(); };
    if (std::all_of(input.valid_by_segment.begin(), input.valid_by_segment.end(), empty)) {
      // Nothing to order, and nothing remembered.
      u.order = input.valid_by_segment;
      u.f = 0, u.regrouped = false;
      return;
    }
    const core::Action action = core::decide(policy_, step, history);
    u.regrouped = action == core::Action::regroup;
    if (u.regrouped) {
      params.followed = core::regroups_next(policy_, step);
      spec::GroupingResult result =
          spec::group_head(input, params, history.has_order ? &u.state : nullptr);
      u.order = result.order_by_segment;
      u.f = result.f_g;
      u.state = std::move(result.state);
      history.has_order = true;
      history.f_at_grouping = history.f_last = result.f_watched;
    } else {
      u.order =
          action == core::Action::identity ? input.valid_by_segment : u.state.order_by_segment;
      u.f = spec::shares_of_order(input, params, u.order).f_watched;
      if (action == core::Action::keep && history.last_call_step != step) history.f_last = u.f;
    }
    history.last_call_step = step;
  }

  const GroupProblem& problem_;
  core::Policy policy_;
  std::vector<Unit> units_;
};

// 90 problems of 0 to 9 blocks, most of them too short to be grouped. A CTA of `Update` gets four
// centroids of them; problems of two or three have fewer, those of five and nine one more.
inline GroupCase ragged_case() {
  GroupCase c{.name = "ragged",
              .kind = spec::Grouping::kmeans,
              .lens = {129, 0, 1100, 128, 1, 257, 640, 127, 300},
              .h = 2,
              .d = 64,
              .sequences = true};
  while (c.lens.size() < 45) c.lens.push_back(static_cast<int64_t>(c.lens.size() % 4));
  return c;
}

inline std::vector<GroupCase> group_cases() {
  using spec::Grouping;
  std::vector<GroupCase> c;
  for (const Grouping kind : {Grouping::vsmooth, Grouping::kmeans, Grouping::kdtree})
    for (const int d : {128, 64, 80, 17})
      c.push_back({.name = "clusters", .kind = kind, .lens = {1300}, .h = 2, .d = d});
  for (const Values values : {Values::noise, Values::identical, Values::few_distinct,
                              Values::one_outlier, Values::zeros, Values::not_finite})
    c.push_back({.name = "values", .lens = {900}, .h = 2, .d = 64, .values = values});
  for (const Values values : {Values::identical, Values::few_distinct, Values::zeros})
    c.push_back({.name = "values, tree",
                 .kind = Grouping::kdtree,
                 .lens = {900},
                 .d = 64,
                 .values = values});
  c.push_back({.name = "segments, tree",
               .kind = Grouping::kdtree,
               .lens = {700, 1, 300, 260},
               .b = 2,
               .d = 64,
               .mask = true});
  for (const int64_t n : {1, 127, 128, 129, 255, 256, 257, 384})
    c.push_back({.name = "length", .lens = {n}, .d = 64});
  for (const bool sequences : {false, true})
    for (const bool mask : {false, true})
      c.push_back({.name = "segments",
                   .lens = {700, 1, 300, 260},
                   .b = 2,
                   .h = 2,
                   .d = 64,
                   .mask = mask,
                   .sequences = sequences});
  c.push_back({.name = "two halves of the sample", .lens = {5000}, .d = 64});
  c.push_back({.name = "fp32", .lens = {700}, .d = 96, .dtype = spec::DType::fp32});
  c.push_back({.name = "fp16, odd pitch",
               .lens = {700},
               .d = 72,
               .dtype = spec::DType::fp16,
               .odd_stride = 3});
  for (const bool mask : {false, true})
    c.push_back({.name = "cubes",
                 .kind = Grouping::cubes,
                 .lens = {7 * 9 * 11, 150},
                 .b = 2,
                 .d = 64,
                 .mask = mask,
                 .grid = {7, 9, 11}});
  c.push_back({.name = "identity", .kind = Grouping::identity, .lens = {300, 70}, .d = 64});
  c.push_back(ragged_case());
  return c;
}

}  // namespace vca::tests
