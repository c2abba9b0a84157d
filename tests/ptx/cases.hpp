// SPDX-License-Identifier: Apache-2.0
// The list of conformance cases, for both targets.
#pragma once

#include "ptx/cluster_cases.hpp"
#include "ptx/cvt_cases.hpp"
#include "ptx/row_cases.hpp"
#include "ptx/sync_cases.hpp"
#include "ptx/wgmma_cases.hpp"

namespace vca::tests {

inline constexpr Case kCases[] = {
    {"unary_conversions", unary_conversions},
    {"directed_rounding", directed_rounding},
    {"vector_accesses", vector_accesses},
    {"async_copies", async_copies},
    {"shared_atomics", shared_atomics},
    {"lanes", lanes},
    {"codes", codes},
    {"exp2_approximation", exp2_approximation},
    {"shuffles_and_votes", shuffles_and_votes},
    {"named_barriers", named_barriers},
    {"mbarrier_phases", mbarrier_phases},
    {"bulk_copies_and_mbarriers", bulk_copies_and_mbarriers},
    {"register_budgets", register_budgets},
    {"cluster_barriers", cluster_barriers},
    {"cluster_multicast", cluster_multicast},
    {"wgmma_s8", wgmma_s8},
    {"wgmma_e4m3_ss", wgmma_e4m3_ss},
    {"wgmma_e4m3_rs", wgmma_e4m3_rs},
    {"wgmma_e4m3_nan", wgmma_e4m3_nan},
    {"wgmma_tf32", wgmma_tf32},
    {"wgmma_generic_operand", wgmma_generic_operand},
};

}  // namespace vca::tests
