// SPDX-License-Identifier: Apache-2.0
#include "core/subproblems.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "core/checked.hpp"
#include "core/names.hpp"
#include "core/status.hpp"

namespace vca::core {
namespace {

using spec::SubProblem;

std::string segment_field(int64_t i, const char* member) {
  return "segments[" + std::to_string(i) + "]." + member;
}

// The caller's segments, or one video segment over everything.
std::vector<vca_segment> checked_segments(const vca_attn_desc& desc, int64_t s_q, int64_t s_kv) {
  if (desc.segments == nullptr) {
    if (desc.n_segments != 0) {
      invalid("n_segments is set but segments is NULL", to_text(desc.n_segments), "0",
              "set both or neither");
    }
    return {vca_segment{0, s_kv, VCA_SEGMENT_VIDEO, 0}};
  }
  if (desc.n_segments < 1) {
    invalid("n_segments is not positive", to_text(desc.n_segments), ">= 1 with segments set",
            "pass NULL segments for one video segment");
  }
  const std::span<const vca_segment> given(desc.segments, static_cast<size_t>(desc.n_segments));
  int64_t at = 0;
  bool sequence = false, shared = false;
  for (int64_t i = 0; i < desc.n_segments; ++i) {
    const vca_segment& s = given[static_cast<size_t>(i)];
    if (s.kind < VCA_SEGMENT_VIDEO || s.kind > VCA_SEGMENT_SEQUENCE) {
      invalid(segment_field(i, "kind") + " is unknown", to_text(int64_t{s.kind}),
              "VIDEO (0), TEXT (1), PADDING (2), SEQUENCE (3)", "");
    }
    if (s.len < 0) {
      invalid(segment_field(i, "len") + " is negative", to_text(s.len), ">= 0", "");
    }
    if (s.begin != at) {
      invalid(segment_field(i, "begin") + " leaves a gap or overlaps", to_text(s.begin),
              to_text(at) + ", where the segment before ends",
              "list segments in order; mark unused tokens as PADDING");
    }
    at = checked_add(at, s.len, segment_field(i, "len").c_str());
    sequence |= s.kind == VCA_SEGMENT_SEQUENCE;
    shared |= s.kind == VCA_SEGMENT_VIDEO || s.kind == VCA_SEGMENT_TEXT;
  }
  if (at != s_kv) {
    invalid("segments do not cover the keys", "an end at " + to_text(at),
            "exactly S_kv = " + to_text(s_kv), "add a PADDING segment for the rest");
  }
  if (sequence && shared) {
    invalid("segments mix SEQUENCE with VIDEO or TEXT", "both kinds",
            "SEQUENCE and PADDING, or VIDEO, TEXT and PADDING",
            "make one SEQUENCE of each prompt's tokens");
  }
  if (sequence && s_q != s_kv) {
    invalid("SEQUENCE segments need as many queries as keys",
            "S_q = " + to_text(s_q) + ", S_kv = " + to_text(s_kv), "S_q == S_kv",
            "a ragged batch is self-attention; use kv_lens for cross attention");
  }
  return {given.begin(), given.end()};
}

void check_lengths(const vca_attn_desc& desc, int64_t batches, int64_t s_kv) {
  if (desc.kv_lens == nullptr) return;
  for (int64_t b = 0; b < batches; ++b) {
    if (desc.kv_lens[b] < 0 || desc.kv_lens[b] > s_kv) {
      invalid("kv_lens[" + std::to_string(b) + "] is out of range",
              to_text(int64_t{desc.kv_lens[b]}), "0 .. S_kv = " + to_text(s_kv), "");
    }
  }
}

void check_grid(const vca_attn_desc& desc, const std::vector<vca_segment>& segments,
                spec::Grouping grouping) {
  const int64_t* g = desc.grid;
  const std::string got = "{" + to_text(g[0]) + ", " + to_text(g[1]) + ", " + to_text(g[2]) + "}";
  const bool none = g[0] == 0 && g[1] == 0 && g[2] == 0;
  if (none) {
    if (grouping == spec::Grouping::cubes) {
      invalid("grouping `cubes` needs the grid", "no grid", "grid = {T, H, W}",
              "set desc.grid, or choose another grouping");
    }
    return;
  }
  if (g[0] < 1 || g[1] < 1 || g[2] < 1) {
    invalid("grid has an extent below 1", got, "all three positive, or all 0", "");
  }
  const int64_t tokens = checked_mul(checked_mul(g[0], g[1], "grid"), g[2], "grid");
  for (size_t i = 0; i < segments.size(); ++i) {
    const vca_segment& s = segments[i];
    const bool cubes_of_sequence =
        s.kind == VCA_SEGMENT_SEQUENCE && grouping == spec::Grouping::cubes && s.len > 0;
    if ((s.kind == VCA_SEGMENT_VIDEO || cubes_of_sequence) && s.len != tokens) {
      invalid("grid does not fit the video tokens",
              got + " = " + to_text(tokens) + " tokens for a segment of " + to_text(s.len),
              "T * H * W equal to the segment's length",
              "give text tokens a segment of their own, or leave the grid out");
    }
  }
}

// body(token) for every valid token of a segment in one batch.
template <class Body>
void for_valid_tokens(const vca_attn_desc& desc, int64_t batch, int64_t s_kv,
                      const vca_segment& segment, Body&& body) {
  int64_t end = segment.begin + segment.len;
  if (desc.kv_lens != nullptr && desc.kv_lens[batch] < end) end = desc.kv_lens[batch];
  const uint8_t* mask = desc.key_mask != nullptr ? desc.key_mask + batch * s_kv : nullptr;
  for (int64_t t = segment.begin; t < end; ++t)
    if (mask == nullptr || mask[t] != 0) body(t);
}

int64_t count_valid(const vca_attn_desc& desc, int64_t batch, int64_t s_kv,
                    const vca_segment& segment) {
  int64_t n = 0;
  if (desc.key_mask != nullptr) {
    for_valid_tokens(desc, batch, s_kv, segment, [&](int64_t) { ++n; });
    return n;
  }
  int64_t end = segment.begin + segment.len;
  if (desc.kv_lens != nullptr) end = std::min(end, int64_t{desc.kv_lens[batch]});
  return std::max<int64_t>(end - segment.begin, 0);
}

void check_mask(const vca_attn_desc& desc, int64_t batches, int64_t s_kv) {
  if (desc.key_mask == nullptr) return;
  for (int64_t b = 0; b < batches; ++b)
    for (int64_t t = 0; t < s_kv; ++t) {
      if (desc.key_mask[b * s_kv + t] > 1) {
        invalid("key_mask[" + std::to_string(b) + ", " + std::to_string(t) + "] is not a boolean",
                to_text(int64_t{desc.key_mask[b * s_kv + t]}), "0 or 1",
                "additive float masks are not supported");
      }
    }
}

void check_block_mask(const vca_attn_desc& desc, const spec::Problem& p) {
  if (desc.block_mask == nullptr) return;
  const int64_t n =
      checked_mul(checked_mul(p.batches, p.h_q, "block_mask"),
                  checked_mul(p.mask_blocks_q(), p.mask_blocks_kv(), "block_mask"), "block_mask");
  for (int64_t i = 0; i < n; ++i) {
    if (desc.block_mask[i] <= 1) continue;
    invalid("block_mask has an element that is not a boolean (number " + to_text(i) + ")",
            to_text(int64_t{desc.block_mask[i]}), "0 or 1",
            "[B, H_q, ceil(S_q/128), ceil(S_kv/128)], contiguous");
  }
}

int64_t blocks_of(int64_t tokens) { return (tokens + spec::kBlock - 1) / spec::kBlock; }

// One sub-problem and what is kept beside it.
class SubBuilder {
 public:
  SubBuilder(Request& request, bool list_tokens) : request_(request), list_tokens_(list_tokens) {}

  void begin(int64_t batch, int64_t q_begin, int64_t q_len) {
    sub_ = {};
    sub_.batch = batch;
    sub_.q_begin = q_begin;
    sub_.q_len = q_len;
    room_ = {};
    count_ = {};
  }

  void add(const vca_segment& segment) {
    if (segment.len == 0) return;
    room_.tokens += segment.len;
    room_.segments += 1;
    room_.blocks += blocks_of(segment.len);
    const vca_attn_desc& desc = request_.desc;
    const int64_t s_kv = request_.problem.s_kv;
    const int64_t valid = count_valid(desc, sub_.batch, s_kv, segment);
    if (valid == 0) return;
    count_.valid += valid;
    count_.blocks += blocks_of(valid);
    if (!list_tokens_) return;
    std::vector<int64_t>& tokens = sub_.segments.emplace_back();
    tokens.reserve(static_cast<size_t>(valid));
    for_valid_tokens(desc, sub_.batch, s_kv, segment, [&](int64_t t) { tokens.push_back(t); });
    const int kind = segment.kind == VCA_SEGMENT_TEXT ? 1 : 0;
    sub_.segment_info.push_back({segment.begin, segment.len, kind});
  }

  void end() {
    request_.problem.subs.push_back(std::move(sub_));
    request_.rooms.push_back(room_);
    request_.key_counts.push_back(count_);
  }

 private:
  Request& request_;
  bool list_tokens_;
  SubProblem sub_;
  StateRoom room_;
  KeyCount count_;
};

void expand_on_device(Request& request, const std::vector<vca_segment>& segments, bool ragged) {
  std::vector<int64_t> range_of;  // by segment
  for (const vca_segment& s : segments) {
    range_of.push_back(static_cast<int64_t>(request.key_ranges.size()));
    if (s.kind != VCA_SEGMENT_PADDING && s.len > 0)
      request.key_ranges.push_back({s.begin, s.len, s.kind != VCA_SEGMENT_TEXT});
  }
  const auto all = static_cast<int64_t>(request.key_ranges.size());
  for (int64_t b = 0; b < request.problem.batches; ++b) {
    if (!ragged) {
      request.device_subs.push_back({b, 0, request.problem.s_q, 0, all});
      continue;
    }
    for (size_t i = 0; i < segments.size(); ++i) {
      const vca_segment& s = segments[i];
      if (s.len == 0) continue;
      const int64_t n = s.kind == VCA_SEGMENT_SEQUENCE ? 1 : 0;
      request.device_subs.push_back({b, s.begin, s.len, n != 0 ? range_of[i] : 0, n});
    }
  }
}

}  // namespace

void expand_subproblems(Request& request, bool list_tokens) {
  const vca_attn_desc& desc = request.desc;
  spec::Problem& p = request.problem;
  const std::vector<vca_segment> segments = checked_segments(desc, p.s_q, p.s_kv);
  if (!request.on_device()) {
    check_lengths(desc, p.batches, p.s_kv);
    check_mask(desc, p.batches, p.s_kv);
    check_block_mask(desc, p);
    p.block_mask = desc.block_mask;
  }
  check_grid(desc, segments, p.grouping);
  p.grid = {desc.grid[0], desc.grid[1], desc.grid[2]};

  bool ragged = false;
  for (const vca_segment& s : segments) ragged |= s.kind == VCA_SEGMENT_SEQUENCE;
  const int64_t n = checked_mul(p.batches, ragged ? static_cast<int64_t>(segments.size()) : 1, "B");
  if (checked_mul(n, std::max<int64_t>(p.h_q, 1), "B * H_q") > kMaxHeads) {
    invalid("the ragged batch has too many sequences times heads",
            to_text(p.batches) + " * " + to_text(static_cast<int64_t>(segments.size())) +
                " segments * " + to_text(p.h_q) + " heads",
            "at most " + to_text(kMaxHeads), "make several calls, each for some of the sequences");
  }
  if (request.on_device()) {
    request.device_subs.reserve(static_cast<size_t>(n));
    expand_on_device(request, segments, ragged);
    return;
  }
  p.subs.reserve(static_cast<size_t>(n));
  request.rooms.reserve(static_cast<size_t>(n));
  request.key_counts.reserve(static_cast<size_t>(n));
  SubBuilder builder(request, list_tokens);
  for (int64_t b = 0; b < p.batches; ++b) {
    if (!ragged) {
      builder.begin(b, 0, p.s_q);
      for (const vca_segment& s : segments)
        if (s.kind != VCA_SEGMENT_PADDING) builder.add(s);
      builder.end();
      continue;
    }
    for (const vca_segment& s : segments) {
      if (s.len == 0) continue;
      builder.begin(b, s.begin, s.len);
      // Queries of a padding segment attend to nothing: O = 0.
      if (s.kind == VCA_SEGMENT_SEQUENCE) builder.add(s);
      builder.end();
    }
  }
}

}  // namespace vca::core
