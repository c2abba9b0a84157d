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

// Calls run.template operator()<Kernel<source, padded head_dim>>().
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
inline Source source_of(const Tensor& t, RopePath path) {
  if (!t.vectors || path == RopePath::scalar) return Source::any;
  return static_cast<Source>(t.dtype);
}

// Launcher: upload(void* to, const std::vector<uint8_t>&) and
// launch<Kernel>(const Kernel::Params&, int64_t blocks), both in stream order.
template <class Launcher>
void run_passes(const PrepParams& request, void* workspace, Launcher& launcher) {
  const Layout layout(request);
  const Params p = device_params(request, layout, workspace);
  const int64_t chunks = p.n_subs * layout.max_chunks;
  const int64_t kv_blocks = layout.n_units * layout.max_chunks;
  const int64_t rank_groups = layout.n_units * layout.max_rank_groups;
  const auto launch = [&]<template <Source, int> class Kernel>(Source source, int64_t blocks,
                                                               const Params& params) {
    for_source<Kernel>(source, p.d_pad,
                       [&]<class K>() { launcher.template launch<K>(params, blocks); });
  };
  const Source q = source_of(p.q, p.rope.path), k = source_of(p.k, p.rope.path);
  const Source v = source_of(p.v, RopePath::none);

  launcher.upload(p.subs, descriptor_image(request, layout));
  if (all_keys_valid(request)) {
    launcher.template launch<AllTokens>(p, p.n_subs * std::max<int64_t>(layout.max_chunks, 1));
  } else {
    launcher.template launch<CountTokens>(p, chunks);
    launcher.template launch<LayOutTokens>(p, p.n_subs);
    launcher.template launch<ScatterTokens>(p, chunks);
  }

  launch.template operator()<KeyOffsetPartial>(k, rank_groups, p);
  launcher.template launch<KeyOffset>(p, layout.n_units);
  const int64_t q_tiles = layout.n_heads * layout.max_q_tiles;
  if (p.e4m3_head) {
    Params measure = p;
    measure.only_maximum = true;
    launch.template operator()<KeyTiles>(k, kv_blocks, measure);
    launch.template operator()<QueryTiles>(q, q_tiles, measure);
    launcher.template launch<HeadMaxima>(p, layout.n_units + layout.n_heads);
  }
  launch.template operator()<KeyTiles>(k, kv_blocks, p);

  launch.template operator()<ValueRange>(v, rank_groups, p);
  launcher.template launch<ValueScale>(p, layout.n_units);
  launch.template operator()<ValueTiles>(v, kv_blocks, p);
  if (p.energy_removed != nullptr) launcher.template launch<EnergyRemoved>(p, layout.n_units);

  launch.template operator()<QueryTiles>(q, q_tiles, p);
  launcher.template launch<QueryUnits>(p, layout.n_heads);
}

}  // namespace vca::kernels::prep
