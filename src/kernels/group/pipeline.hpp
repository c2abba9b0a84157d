// SPDX-License-Identifier: Apache-2.0
// The grouping kernels in their order. A launcher runs them: on a stream (launch.cu) or on the
// emulator (tests/kernels).
#pragma once

#include "kernels/group/blocks.hpp"
#include "kernels/group/clusters.hpp"
#include "kernels/group/distances.hpp"
#include "kernels/group/exchange.hpp"
#include "kernels/group/match.hpp"
#include "kernels/group/sort.hpp"
#include "kernels/group/state.hpp"
#include "kernels/group/tokens.hpp"
#include "kernels/group/tree.hpp"
#include "kernels/group/update.hpp"
#include "kernels/group/workspace.hpp"

namespace vca::kernels::group {

// How many CTAs an item list is dealt to: one each, or as many as are resident.
enum class Grid { item_each, resident };

template <int kD, class Launcher>
void form_clusters(const Params& p, Launcher& launcher) {
  const bool kmeans = p.kind == spec::Grouping::kmeans;
  launcher.template launch<SampleRows>(Grid::item_each, p, p.n_problems * SampleRows::tiles(p));
  launcher.template launch<StartCentroids>(
      Grid::item_each, p, p.n_problems * ceil_div(p.max_blocks, StartCentroids::kCentroids));
  const int32_t share = Update<kD>::share(p.n_problems, p.max_blocks);
  for (int32_t i = 0; i < p.iterations; ++i) {
    launcher.template launch<Assign<kD, true>>(Grid::resident, p,
                                               p.n_problems * Assign<kD, true>::tiles(p), i);
    if (!kmeans || i + 1 < p.iterations)
      launcher.template launch<Update<kD>>(Grid::item_each, p,
                                           p.n_problems * ceil_div(p.max_blocks, share), i, share);
  }
  if (kmeans) return;
  launcher.template launch<Neighbours<kD>>(Grid::resident, p,
                                           p.n_problems * Neighbours<kD>::tiles(p));
  launcher.template launch<Chain<kD>>(Grid::item_each, p, p.n_problems);
  launcher.template launch<Assign<kD, false>>(Grid::resident, p,
                                              p.n_problems * Assign<kD, false>::tiles(p), 0);
}

template <int kD, class Launcher>
void grow_trees(const Params& p, Launcher& launcher) {
  launcher.template launch<Axes<kD>>(Grid::item_each, p, p.n_units);
  launcher.template launch<Project<kD>>(Grid::resident, p, p.n_units * p.max_unit_blocks);
  const int32_t levels = tree_levels(p.max_blocks);
  for (int32_t level = 0; level < levels; ++level)
    launcher.template launch<SplitNodes>(Grid::resident, p, p.n_problems << level, level);
}

template <int kD, class Launcher>
void form_orders(const Params& p, Launcher& launcher) {
  const int64_t blocks = p.n_problems * p.max_blocks;
  const int64_t histograms = p.n_problems * Histogram::tiles(p);
  if (p.kind == spec::Grouping::kdtree) {
    grow_trees<kD>(p, launcher);
  } else if (p.kind != spec::Grouping::identity) {
    if (p.kind != spec::Grouping::cubes) form_clusters<kD>(p, launcher);
    launcher.template launch<Histogram>(Grid::item_each, p, histograms);
    launcher.template launch<HistogramSums>(Grid::item_each, p, p.n_problems);
    launcher.template launch<Scatter>(Grid::item_each, p, histograms);
  }
  launcher.template launch<BlockSums>(Grid::resident, p, blocks, Which::new_orders);
  // Without a state, every unit starts cold.
  const int32_t passes =
      p.state == nullptr || p.cold_passes > p.warm_passes ? p.cold_passes : p.warm_passes;
  for (int32_t pass = 0; pass < passes; ++pass) {
    launcher.template launch<Propose<kD>>(Grid::item_each, p, p.n_problems * Propose<kD>::tiles(p),
                                          pass);
    launcher.template launch<Match<kD>>(Grid::item_each, p, p.n_problems, pass);
    launcher.template launch<Exchange<kD>>(Grid::resident, p, p.n_problems * (p.max_blocks / 2),
                                           pass);
  }
}

// From the tokens' ranks to p.out_order and the state.
template <class Launcher>
void run_passes(const Request& request, const Layout& layout, const prep::Params& from,
                void* scratch, Part part, Launcher& launcher) {
  const Params p = device_params(request, layout, from, scratch);
  if (layout.n_problems == 0 || layout.max_blocks == 0) return;
  if (part == Part::scales || part == Part::all) {
    launcher.upload(static_cast<uint8_t*>(scratch) + layout.table, table_image(layout));
    launcher.template launch<SigmaMaxima>(Grid::item_each, p, p.n_units * kSigmaParts);
    launcher.template launch<SigmaSums>(Grid::item_each, p, p.n_units * kSigmaParts);
    launcher.template launch<SigmaScale>(Grid::item_each, p, p.n_units);
    if (p.state != nullptr && !p.fixed_tokens)
      launcher.template launch<Fingerprint>(Grid::item_each, p, int64_t{p.n_subs});
    launcher.template launch<Decide>(Grid::item_each, p, 1);
    if (part == Part::scales) return;
  }
  if (part != Part::order)
    launcher.template launch<Tokens>(Grid::resident, p, p.n_units * p.max_unit_blocks);
  launcher.template launch<LoadOrder>(Grid::item_each, p,
                                      p.n_problems * ceil_div(p.max_blocks, LoadOrder::kBlocks));
  if (p.state != nullptr) {
    launcher.template launch<BlockSums>(Grid::resident, p, p.n_problems * p.max_blocks,
                                        Which::old_orders);
    launcher.template launch<Judge>(Grid::item_each, p, p.n_units);
  }
  if (p.d_pad == 128)
    form_orders<128>(p, launcher);
  else
    form_orders<64>(p, launcher);
  if (p.state != nullptr)
    launcher.template launch<Watch>(Grid::resident, p, p.n_problems * Watch::tiles(p));
  launcher.template launch<StoreOrder>(Grid::item_each, p,
                                       p.n_problems * ceil_div(p.max_blocks, StoreOrder::kWarps));
  launcher.template launch<StoreUnit>(Grid::item_each, p, p.n_units);
}

}  // namespace vca::kernels::group
