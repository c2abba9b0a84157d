// SPDX-License-Identifier: Apache-2.0
#include "kernels/prep/k_offset.hpp"
#include "kernels/prep/row_kernels.cuh"

namespace vca::kernels::prep {

VCA_TURNING_ROW_KERNELS(KeyOffsetPartial)

}  // namespace vca::kernels::prep
