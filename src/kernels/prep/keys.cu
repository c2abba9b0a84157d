// SPDX-License-Identifier: Apache-2.0
#include "kernels/prep/keys.hpp"
#include "kernels/prep/row_kernels.cuh"

namespace vca::kernels::prep {

VCA_TURNING_ROW_KERNELS(KeyTiles)

}  // namespace vca::kernels::prep
