// SPDX-License-Identifier: Apache-2.0
// Emulator bodies of the instruction layer; link with vca_emu.
#pragma once

#include "ptx/emu/cvt.inl"
#include "ptx/emu/memory.inl"
#include "ptx/emu/sync.inl"
#include "ptx/emu/thread.inl"
#include "ptx/emu/warp.inl"
#include "ptx/emu/wgmma.inl"
