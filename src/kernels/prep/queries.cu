// SPDX-License-Identifier: Apache-2.0
#include "kernels/prep/queries.hpp"
#include "kernels/prep/row_kernels.cuh"

namespace vca::kernels::prep {

VCA_TURNING_ROW_KERNELS(QueryTiles)

}  // namespace vca::kernels::prep
