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

// Launcher: upload(void* to, const std::vector<uint8_t>&) and
// launch<Kernel>(const Kernel::Params&, int64_t blocks), both in stream order.
template <class Launcher>
void run_passes(const PrepParams& request, void* workspace, Launcher& launcher) {
  const Layout layout(request);
  const Params p = device_params(request, layout, workspace);
  const int64_t chunks = p.n_subs * layout.max_chunks;
  const int64_t kv_blocks = layout.n_units * layout.max_chunks;
  const int64_t rank_groups = layout.n_units * layout.max_rank_groups;

  launcher.upload(p.subs, descriptor_image(request, layout));
  launcher.template launch<CountTokens>(p, chunks);
  launcher.template launch<LayOutTokens>(p, p.n_subs);
  launcher.template launch<ScatterTokens>(p, chunks);

  launcher.template launch<KeyOffsetPartial>(p, rank_groups);
  launcher.template launch<KeyOffset>(p, layout.n_units);
  if (p.e4m3_head) {
    launcher.template launch<KeyMaximum>(p, kv_blocks);
    launcher.template launch<QueryMaximum>(p, layout.n_heads * layout.max_q_tiles);
    launcher.template launch<HeadMaxima>(p, layout.n_units + layout.n_heads);
  }
  launcher.template launch<KeyTiles>(p, kv_blocks);

  launcher.template launch<ValueRange>(p, rank_groups);
  launcher.template launch<ValueScale>(p, layout.n_units);
  launcher.template launch<ValueTiles>(p, kv_blocks);
  if (p.energy_removed != nullptr) {
    launcher.template launch<EnergyOfBlock>(p, kv_blocks);
    launcher.template launch<EnergyRemoved>(p, layout.n_units);
  }

  launcher.template launch<QueryTiles>(p, layout.n_heads * layout.max_q_tiles);
  launcher.template launch<QueryUnits>(p, layout.n_heads);
}

}  // namespace vca::kernels::prep
