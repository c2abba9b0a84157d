// SPDX-License-Identifier: Apache-2.0
// The passes in their order. A launcher runs them: on a stream (launch.cu) or in loops on the host
// (tests/kernels), which is how the same sources are tested without a GPU.
#pragma once

#include "kernels/prep/energy.hpp"
#include "kernels/prep/finish.hpp"
#include "kernels/prep/head_maximum.hpp"
#include "kernels/prep/k_offset.hpp"
#include "kernels/prep/keys.hpp"
#include "kernels/prep/queries.hpp"
#include "kernels/prep/tokens.hpp"
#include "kernels/prep/value_range.hpp"
#include "kernels/prep/values.hpp"
#include "kernels/prep/workspace.hpp"
#include "kernels/prep/zero_rows.hpp"

namespace vca::kernels::prep {

inline Source source_of(const Tensor& t, RopePath path) {
  if (!t.vectors || path == RopePath::scalar) return Source::any;
  return static_cast<Source>(t.dtype);
}
// Grids have code of their own for BF16 only, which is what models have.
inline Turn turn_of(Source source, const Rope& r) {
  if (source == Source::any || r.path == RopePath::none) return Turn::none;
  if (source == Source::bf16 && r.path == RopePath::interleaved && r.cos == nullptr)
    return Turn::grid;
  return Turn::any;
}

// Kernels by source and padded head_dim, and by RoPE: run.template operator()<Kernel<...>>().
template <template <Source, int> class Kernel, class Run>
void for_source(Source source, int d_pad, const Run& run) {
  const auto with = [&]<Source kSource>() {
    if (d_pad == 128)
      run.template operator()<Kernel<kSource, 128>>();
    else
      run.template operator()<Kernel<kSource, 64>>();
  };
  if (source == Source::bf16) return with.template operator()<Source::bf16>();
  if (source == Source::fp16) return with.template operator()<Source::fp16>();
  if (source == Source::fp32) return with.template operator()<Source::fp32>();
  with.template operator()<Source::any>();
}
template <template <Source, int, Turn> class Kernel, class Run>
void for_source(Source source, int d_pad, Turn turn, const Run& run) {
  const auto with = [&]<Source kSource, Turn kTurn>() {
    if (d_pad == 128)
      run.template operator()<Kernel<kSource, 128, kTurn>>();
    else
      run.template operator()<Kernel<kSource, 64, kTurn>>();
  };
  const auto with_turn = [&]<Source kSource>() {
    if (turn == Turn::none) return with.template operator()<kSource, Turn::none>();
    with.template operator()<kSource, Turn::any>();
  };
  if (source == Source::any) return with.template operator()<Source::any, Turn::none>();
  if (turn == Turn::grid) return with.template operator()<Source::bf16, Turn::grid>();
  if (source == Source::bf16) return with_turn.template operator()<Source::bf16>();
  if (source == Source::fp16) return with_turn.template operator()<Source::fp16>();
  with_turn.template operator()<Source::fp32>();
}

// Launcher: upload(void* to, const std::vector<uint8_t>&),
// launch<Kernel>(const Kernel::Params&, int64_t blocks) and form_order(the arguments of
// group::form_order), all in stream order.
template <class Launcher>
void run_passes(const PrepParams& request, void* workspace, Launcher& launcher) {
  const Layout layout(request);
  const Params p = device_params(request, layout, workspace);
  const int64_t chunks = p.n_subs * layout.max_chunks;
  const int64_t kv_blocks = layout.n_units * layout.max_chunks;
  const int64_t rank_groups = layout.n_units * layout.max_rank_groups;
  const int64_t q_tiles = layout.n_heads * layout.max_q_tiles;
  const Source q = source_of(p.q, p.rope.path), k = source_of(p.k, p.rope.path);
  const Source v = source_of(p.v, RopePath::none);
  const auto with = [&](const Params& params, int64_t blocks) {
    return [&launcher, &params, blocks]<class Kernel>() {
      launcher.template launch<Kernel>(params, blocks);
    };
  };
  const auto keys = [&](const Params& params) {
    for_source<KeyTiles>(k, p.d_pad, turn_of(k, p.rope), with(params, kv_blocks));
  };
  const auto queries = [&](const Params& params) {
    for_source<QueryTiles>(q, p.d_pad, turn_of(q, p.rope), with(params, q_tiles));
  };

  launcher.upload(p.subs, descriptor_image(request, layout));
  if (all_keys_valid(request)) {
    launcher.template launch<AllTokens>(p, p.n_subs * std::max<int64_t>(layout.max_chunks, 1));
  } else {
    launcher.template launch<CountTokens>(p, chunks);
    launcher.template launch<LayOutTokens>(p, p.n_subs);
    launcher.template launch<ScatterTokens>(p, chunks);
  }
  // Values first: grouping begins with what the pass over V for its range writes.
  Params ranges = p;
  const bool groups = layout.group.has_value();
  const auto form_order = [&](group::Part part) {
    launcher.form_order(request.grouping, *layout.group, p,
                        static_cast<uint8_t*>(workspace) + layout.grouping, part);
  };
  if (groups) {
    form_order(group::Part::scales);
    if (v != Source::any) {
      auto* scratch = static_cast<uint8_t*>(workspace) + layout.grouping;
      ranges.token_values = reinterpret_cast<int8_t*>(scratch + layout.group->values);
      ranges.token_wanted = scratch + layout.group->token_wanted;
      ranges.token_scale = reinterpret_cast<const TokenScale*>(scratch + layout.group->scales);
    }
  }
  for_source<ValueRange>(v, p.d_pad, with(ranges, rank_groups));
  launcher.template launch<ValueScale>(p, layout.n_units);
  if (groups) form_order(v == Source::any ? group::Part::tokens_and_order : group::Part::order);

  for_source<KeyOffsetPartial>(k, p.d_pad, turn_of(k, p.rope), with(p, rank_groups));
  launcher.template launch<KeyOffset>(p, layout.n_units);
  if (p.e4m3_head) {
    Params measure = p;
    measure.only_maximum = true;
    keys(measure);
    queries(measure);
    launcher.template launch<HeadMaxima>(p, layout.n_units + layout.n_heads);
  }
  keys(p);

  for_source<ValueTiles>(v, p.d_pad, with(p, kv_blocks));
  if (p.energy_removed != nullptr) launcher.template launch<EnergyRemoved>(p, layout.n_units);

  queries(p);
  launcher.template launch<QueryUnits>(p, layout.n_heads);
}

}  // namespace vca::kernels::prep
