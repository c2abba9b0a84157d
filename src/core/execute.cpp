// SPDX-License-Identifier: Apache-2.0
#include "core/execute.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <optional>

#include "core/checked.hpp"
#include "core/delta.hpp"
#include "core/exact.hpp"
#include "core/output.hpp"
#include "core/parallel.hpp"
#include "core/select.hpp"
#include "core/tensor_check.hpp"

namespace vca::core {
namespace {

// Operands in flight when the library takes the memory itself.
constexpr int64_t kChunkBytes = int64_t{256} << 20;

int64_t group_size(const spec::Problem& p) { return p.h_kv > 0 ? p.h_q / p.h_kv : 0; }

// Mean over the sub-problems of a batch, weighted by tokens; NaN ones are left out.
void write_reports(const Request& request, const std::vector<UnitReport>& reports) {
  const vca_attn_desc& d = request.desc;
  const spec::Problem& p = request.problem;
  const size_t heads = static_cast<size_t>(p.batches * p.h_kv);
  std::vector<double> sum(heads, 0.0), weight(heads, 0.0);
  std::vector<uint8_t> regrouped(heads, 0);
  for (size_t unit = 0; unit < reports.size(); ++unit) {
    const auto u = static_cast<int64_t>(unit);
    const spec::SubProblem& sub = p.subs[static_cast<size_t>(unit_sub(request, u))];
    const auto at = static_cast<size_t>(sub.batch * p.h_kv + unit_kv_head(request, u));
    if (reports[unit].regrouped) regrouped[at] = 1;
    if (!std::isfinite(reports[unit].energy_removed)) continue;
    const auto tokens = static_cast<double>(sub.n_valid());
    sum[at] += tokens * static_cast<double>(reports[unit].energy_removed);
    weight[at] += tokens;
  }
  for (size_t i = 0; i < heads; ++i) {
    if (d.energy_removed != nullptr) {
      d.energy_removed[i] = weight[i] > 0.0 ? static_cast<float>(sum[i] / weight[i])
                                            : std::numeric_limits<float>::quiet_NaN();
    }
    if (d.regrouped != nullptr) d.regrouped[i] = regrouped[i];
  }
}

std::optional<GroupState> open_state(const Request& request) {
  if (!request.uses_state()) return std::nullopt;
  GroupState state(&request, request.desc.state);
  // A damaged slot is reported before anything is written.
  for (int64_t slot = 0; slot < state.slots(); ++slot) {
    spec::HeadState head;
    state.load(slot, &head);
  }
  return state;
}

// A workspace laid over a tensor would change it under the caller's hands. Prepare looks at the
// inputs only, attend, before which they may be gone, at the outputs only.
Region workspace_region(const Request& request, const void* workspace) {
  return region_of_array("workspace", workspace, workspace_bytes(request), 1);
}

void require_apart_from_inputs(const Request& request, const void* workspace) {
  const Region memory = workspace_region(request, workspace);
  check_disjoint(memory, region_of("q", request.desc.q));
  check_disjoint(memory, region_of("k", request.desc.k));
  check_disjoint(memory, region_of("v", request.desc.v));
  require_apart_from_arrays(request, memory, GroupState::bytes_needed(request));
}

void require_apart_from_outputs(const Request& request, const void* workspace) {
  const Region memory = workspace_region(request, workspace);
  const spec::Problem& p = request.problem;
  check_disjoint(memory, region_of("o", request.desc.o));
  check_disjoint(
      memory, region_of_array("lse", request.desc.lse, p.batches * p.h_q * p.s_q, sizeof(float)));
}

struct Tile {
  int64_t unit, q_head, row0;
  int rows;
};

std::vector<Tile> tiles_of(const Request& request, int64_t first, int64_t last) {
  const spec::Problem& p = request.problem;
  const int64_t group = group_size(p);
  std::vector<Tile> tiles;
  for (int64_t unit = first; unit < last; ++unit) {
    const spec::SubProblem& sub = p.subs[static_cast<size_t>(unit_sub(request, unit))];
    const int64_t rows = sub.q_len, begin = sub.q_begin;
    for (int64_t g = 0; g < group; ++g)
      for (int64_t row = 0; row < rows;) {
        int64_t end = std::min(rows, row + cpu::kTileRows - row % cpu::kTileRows);
        // The rows of a tile share a row of the block mask, which counts from the first query of
        // all.
        if (p.block_mask != nullptr)
          end = std::min(end, row + spec::kBlock - (begin + row) % spec::kBlock);
        tiles.push_back(
            {unit, unit_kv_head(request, unit) * group + g, row, static_cast<int>(end - row)});
        row = end;
      }
  }
  return tiles;
}

struct FreeAligned {
  void operator()(uint8_t* p) const { std::free(p); }
};
using AlignedMemory = std::unique_ptr<uint8_t, FreeAligned>;

AlignedMemory allocate_aligned(int64_t bytes) {
  const int64_t whole = round_up(std::max<int64_t>(bytes, 1), kWorkspaceAlign);
  void* const p = std::aligned_alloc(kWorkspaceAlign, static_cast<size_t>(whole));
  if (p == nullptr) throw std::bad_alloc();
  return AlignedMemory(static_cast<uint8_t*>(p));
}

// Pieces of the unit list: as many units as fit the chunk, but enough for every thread.
std::vector<int64_t> chunk_ends(const Request& request, const Layout& layout) {
  std::vector<int64_t> ends;
  const int64_t units = unit_count(request);
  int64_t bytes = 0, in_chunk = 0;
  for (int64_t unit = 0; unit < units; ++unit) {
    const int64_t more = layout.unit_bytes(unit);
    if (in_chunk >= request.threads && bytes + more > kChunkBytes) {
      ends.push_back(unit);
      bytes = in_chunk = 0;
    }
    bytes += more;
    ++in_chunk;
  }
  if (units > 0) ends.push_back(units);
  return ends;
}

}  // namespace

void prepare_units(const Request& request, const Layout& layout, uint8_t* base, int64_t first,
                   int64_t last, GroupState* state, std::vector<UnitReport>& reports) {
  const spec::Problem& p = request.problem;
  const int64_t group = group_size(p);
  parallel_for(last - first, request.threads, [&](int64_t i, int) {
    const int64_t unit = first + i;
    const spec::SubProblem& sub = p.subs[static_cast<size_t>(unit_sub(request, unit))];
    spec::KvOperands kv = layout.kv(base, unit);
    const UnitOrder order = order_unit(request, unit, state);
    spec::prepare_kv(p, sub, unit_kv_head(request, unit), order.by_segment, kv);
    kv.stats->f_g = static_cast<float>(order.f_g);
    kv.stats->grouping_used = static_cast<int32_t>(order.used);
    reports[static_cast<size_t>(unit)] = {kv.stats->energy_removed, order.regrouped};
  });
  parallel_for((last - first) * group, request.threads, [&](int64_t i, int) {
    const int64_t unit = first + i / group;
    const int64_t q_head = unit_kv_head(request, unit) * group + i % group;
    const spec::SubProblem& sub = p.subs[static_cast<size_t>(unit_sub(request, unit))];
    spec::QOperands q = layout.q(base, unit, q_head);
    spec::prepare_q(p, sub, q_head, layout.kv(base, unit).k_offset, q);
  });
}

namespace {

// Scores of the query means for the tiles of [first, last): rows of the matrix in the order of the
// tiles, each shared by the tiles of 128 queries.
class DeltaChunk {
 public:
  DeltaChunk(const Request& request, const Layout& layout, uint8_t* base,
             const std::vector<Tile>& tiles, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Tile& t = tiles[static_cast<size_t>(i)];
      if (rows_.empty() || starts_row(tiles, i)) {
        rows_.push_back({&t, size_});
        size_ += layout.kv(base, t.unit).n_cols();
      }
      offset_.push_back(rows_.back().offset);
    }
    values_.resize(static_cast<size_t>(size_));
    parallel_for(static_cast<int64_t>(rows_.size()), request.threads, [&](int64_t i, int) {
      const Row& row = rows_[static_cast<size_t>(i)];
      const Tile& t = *row.tile;
      const spec::KvOperands kv = layout.kv(base, t.unit);
      const spec::QOperands q = layout.q(base, t.unit, t.q_head);
      const float* mean = q.q_mean + q.mean_row(t.row0) * q.d_pad;
      for (int64_t j = 0; j < kv.n_blocks; ++j)
        spec::mean_scores(kv, mean, j, values_.data() + row.offset + j * spec::kBlock);
    });
  }
  // Of tile `first + i`.
  const float* of(int64_t i) const { return values_.data() + offset_[static_cast<size_t>(i)]; }

  static bool starts_row(const std::vector<Tile>& tiles, int64_t i) {
    if (i == 0) return true;
    const Tile &t = tiles[static_cast<size_t>(i)], &before = tiles[static_cast<size_t>(i - 1)];
    return t.unit != before.unit || t.q_head != before.q_head ||
           t.row0 / spec::kBlock != before.row0 / spec::kBlock;
  }

 private:
  struct Row {
    const Tile* tile;
    int64_t offset;
  };
  std::vector<Row> rows_;
  std::vector<int64_t> offset_;  // by tile
  std::vector<float> values_;
  int64_t size_ = 0;
};

// Ends of the pieces of the tile list whose query means are handled together.
std::vector<int64_t> tile_chunks(const Request& request, const Layout& layout, uint8_t* base,
                                 const std::vector<Tile>& tiles) {
  const auto n = static_cast<int64_t>(tiles.size());
  if (!request.problem.recipe->q_mean)
    return n > 0 ? std::vector<int64_t>{n} : std::vector<int64_t>{};
  std::vector<int64_t> starts, bytes;
  for (int64_t i = 0; i < n; ++i) {
    if (!DeltaChunk::starts_row(tiles, i)) continue;
    starts.push_back(i);
    bytes.push_back(layout.kv(base, tiles[static_cast<size_t>(i)].unit).n_cols() *
                    static_cast<int64_t>(sizeof(float)));
  }
  std::vector<int64_t> ends = delta_chunk_ends(bytes, delta_cap_bytes());
  for (int64_t& end : ends)
    end = end < static_cast<int64_t>(starts.size()) ? starts[static_cast<size_t>(end)] : n;
  return ends;
}

}  // namespace

void attend_units(const Request& request, cpu::Isa isa, const Layout& layout, uint8_t* base,
                  int64_t first, int64_t last) {
  const spec::Problem& p = request.problem;
  const std::vector<Tile> tiles = tiles_of(request, first, last);
  const int threads =
      static_cast<int>(std::min<int64_t>(request.threads, static_cast<int64_t>(tiles.size())));
  std::vector<cpu::Scratch> scratch(static_cast<size_t>(std::max(threads, 0)));
  int64_t begin = 0;
  for (const int64_t end : tile_chunks(request, layout, base, tiles)) {
    std::optional<DeltaChunk> delta;
    if (p.recipe->q_mean) delta.emplace(request, layout, base, tiles, begin, end);
    parallel_for(end - begin, threads, [&](int64_t i, int thread) {
      const Tile& t = tiles[static_cast<size_t>(begin + i)];
      const spec::SubProblem& sub = p.subs[static_cast<size_t>(unit_sub(request, t.unit))];
      cpu::Scratch& s = scratch[static_cast<size_t>(thread)];
      cpu::attend_tile(isa, p, layout.kv(base, t.unit), layout.q(base, t.unit, t.q_head), t.row0,
                       t.rows, delta ? delta->of(i) : nullptr, request.lse(), s);
      for (int r = 0; r < t.rows; ++r) {
        const int64_t row = sub.q_begin + t.row0 + r;
        store_row(request.desc.o, sub.batch, t.q_head, row, s.o + r * p.d);
        if (request.lse())
          request.desc.lse[(sub.batch * p.h_q + t.q_head) * p.s_q + row] = s.lse[r];
      }
    });
    begin = end;
  }
}

void prepare(const Request& request, void* workspace, size_t bytes) {
  select_isa(request);
  require_room(request, workspace, bytes);
  require_apart_from_inputs(request, workspace);
  std::optional<GroupState> state = open_state(request);
  mark_unprepared(workspace);
  auto* body = static_cast<uint8_t*>(workspace) + sizeof(WorkspaceHeader);
  std::vector<UnitReport> reports(static_cast<size_t>(unit_count(request)),
                                  {std::numeric_limits<float>::quiet_NaN(), false});
  if (request.exact()) {
    exact_copy(request, body);
  } else {
    const int64_t units = unit_count(request);
    const Layout layout(request, 0, units);
    prepare_units(request, layout, body, 0, units, state ? &*state : nullptr, reports);
  }
  mark_prepared(request, workspace);
  write_reports(request, reports);
}

void attend(const Request& request, void* workspace, size_t bytes) {
  const cpu::Isa isa = select_isa(request);
  require_prepared(request, workspace, bytes);
  require_apart_from_outputs(request, workspace);
  auto* body = static_cast<uint8_t*>(workspace) + sizeof(WorkspaceHeader);
  if (request.exact()) {
    exact_attend(request, exact_problem(request, body));
    return;
  }
  const int64_t units = unit_count(request);
  attend_units(request, isa, Layout(request, 0, units), body, 0, units);
}

void run(const Request& request, void* workspace, size_t bytes) {
  if (workspace != nullptr || bytes != 0) {
    require_room(request, workspace, bytes);
    require_apart_from_outputs(request, workspace);  // before anything is written
    prepare(request, workspace, bytes);
    attend(request, workspace, bytes);
    return;
  }
  const cpu::Isa isa = select_isa(request);
  std::optional<GroupState> state = open_state(request);
  const int64_t units = unit_count(request);
  std::vector<UnitReport> reports(static_cast<size_t>(units),
                                  {std::numeric_limits<float>::quiet_NaN(), false});
  if (request.exact()) {
    exact_attend(request, request.problem);
    write_reports(request, reports);
    return;
  }
  const std::vector<int64_t> ends = chunk_ends(request, Layout(request, 0, units));
  int64_t memory_bytes = 0;
  for (size_t c = 0; c < ends.size(); ++c)
    memory_bytes = std::max(memory_bytes, Layout(request, c ? ends[c - 1] : 0, ends[c]).bytes());
  const AlignedMemory memory = allocate_aligned(memory_bytes);
  int64_t first = 0;
  for (const int64_t last : ends) {
    const Layout layout(request, first, last);
    prepare_units(request, layout, memory.get(), first, last, state ? &*state : nullptr, reports);
    attend_units(request, isa, layout, memory.get(), first, last);
    first = last;
  }
  write_reports(request, reports);
}

}  // namespace vca::core
