// SPDX-License-Identifier: Apache-2.0
#include "kernels/prep/row_kernels.cuh"
#include "kernels/prep/values.hpp"

namespace vca::kernels::prep {

VCA_ROW_KERNELS(ValueRange)
VCA_ROW_KERNELS(ValueTiles)

}  // namespace vca::kernels::prep
