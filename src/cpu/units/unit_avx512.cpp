// SPDX-License-Identifier: Apache-2.0
// GCC 12's own avx512fintrin.h initialises "undefined" vectors with themselves and warns about it
// in every caller (GCC bug 105593); nothing of ours is uninitialised, as the AVX2 and portable
// builds of the same source show.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <math.h>
#include <stdint.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define VCA_CPU_RUN_TILE run_tile_avx512
#define VCA_CPU_HAS_DOT4 1
#include "cpu/kernels.inl.hpp"
