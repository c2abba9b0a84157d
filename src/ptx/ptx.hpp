// SPDX-License-Identifier: Apache-2.0
// The instruction layer as kernels include it: declarations, then the bodies of the target being
// compiled.
#pragma once

#include "ptx/cvt.hpp"
#include "ptx/desc.hpp"
#include "ptx/memory.hpp"
#include "ptx/sync.hpp"
#include "ptx/thread.hpp"
#include "ptx/warp.hpp"
#include "ptx/wgmma.hpp"

#if defined(__CUDACC__)
#include "ptx/device/cvt.inl"
#include "ptx/device/memory.inl"
#include "ptx/device/sync.inl"
#include "ptx/device/thread.inl"
#include "ptx/device/warp.inl"
#include "ptx/device/wgmma.inl"
#else
#include "ptx/emu/bodies.inl"
#endif
