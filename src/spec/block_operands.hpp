// SPDX-License-Identifier: Apache-2.0
// The keys and values of one block as the specification's products take them: decoded once, used by
// every row.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/operands.hpp"
#include "spec/target.hpp"

namespace vca::spec {

// One block's operands, decoded once for all rows.
struct BlockOperands {
  std::vector<float> k_columns;  // [d_pad][kBlock], E4M3 and BF16 QK
  std::vector<float> v;          // [kBlock][d_pad + kGroupBlocks]: values, then indicator columns
  bool valid[kBlock];
  // NVFP4 on a chip: the arrays above hold elements, and these the micro-scales.
  std::vector<float> k_scales;  // [d_pad / 16][kBlock]
  std::vector<float> v_scales;  // [kBlock / 16][d_pad + kGroupBlocks]
};

// Decodes block j of `kv`. NVFP4 stays elements and micro-scales where `target` multiplies those
// itself.
void load_block(const Problem& p, const KvOperands& kv, int64_t j, Target target,
                BlockOperands& out);

}  // namespace vca::spec
