// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdint.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define VCA_CPU_RUN_TILE run_tile_portable
#include "cpu/kernels.inl.hpp"
