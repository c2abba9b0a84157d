// SPDX-License-Identifier: Apache-2.0
// Warp-wide instructions as functions of the words that the lanes bring.
#pragma once

#include "emu/collective.hpp"

namespace vca::emu::warp_ops {

uint32_t ballot(Collectives& warp, bool predicate);
uint32_t match_any(Collectives& warp, uint32_t value);
int32_t reduce_add(Collectives& warp, int32_t value);
int32_t reduce_min(Collectives& warp, int32_t value);
int32_t reduce_max(Collectives& warp, int32_t value);
void mma_m16n8k32_s8(Collectives& warp, int32_t (&d)[4], const uint32_t (&a)[4],
                     const uint32_t (&b)[2]);

}  // namespace vca::emu::warp_ops
