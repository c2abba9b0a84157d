// SPDX-License-Identifier: Apache-2.0
// What the CPU backend hands to an instruction-set unit: plain data and one function pointer. Units
// are compiled with flags of their own, so nothing that has inline code is included here or there:
// an inline function of the standard library compiled for AVX-512 could be the copy that the linker
// keeps for everybody.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace vca::cpu {

constexpr int kTileRows = 64;    // query rows of a tile, whatever the vector width
constexpr int kTileBlock = 128;  // keys of a block

enum QkKind : int { kQkInt8, kQkE4m3, kQkBf16, kQkFp4 };
enum PKind : int { kPExpCast, kPCastE4m3, kPCastU8, kPFp32, kPFp4, kPFp4Folded };
enum VKind : int { kVE4m3, kVInt8, kVBf16, kVFp4 };
// The L2 orders of src/spec/attention.hpp.
enum OrderKind : int { kOrderPlain, kOrderLocal, kOrderRunning, kOrderMeans };

// Up to kTileRows query rows of one head against all keys of its sub-problem.
struct TileTask {
  QkKind qk;
  PKind p;
  VKind v;
  OrderKind order_kind;
  float top;

  int head_dim;          // channels of V and O
  int qk_dims;           // channels of Q and K that can be non-zero, a multiple of 4
  int d_pad;             // pitch of the operand arrays
  int64_t n_blocks;      // >= 1
  const int32_t* order;  // -1 marks the pads at the end of a block

  const uint8_t* k_codes;
  const float* k_real;
  const float* k_scale;
  const uint8_t* v_codes;
  const float* v_real;
  const float* mu;
  const float* v_scale;
  const float* s_v;
  const uint8_t* k_micro;  // NVFP4: micro-scales of 16 channels, pitch d_pad / 16
  const uint8_t* v_micro;  // NVFP4: micro-scales of 16 keys by channel
  // Row of the block mask for the tile, by token / 128; null without. A block of columns without an
  // allowed token is skipped.
  const uint8_t* mask;
  const float* delta;  // scores of the tile's query mean, one a column; null without

  int rows;                // 1 .. kTileRows
  const uint8_t* q_codes;  // of the first row, pitch d_pad
  const float* q_real;
  const uint8_t* q_micro;
  const float* q_unit;             // [rows] factor of a row's scores
  const uint32_t* exp2_fractions;  // the specification's table of 2^(-k/128)
  const float* log_scales;         // the specification's table of 8 log2(UE4M3 code)

  float* o;      // out: [rows][head_dim]
  float* l;      // out: [rows]
  float* m_run;  // out: [rows]
};

using TileFunction = void (*)(const TileTask& task, void* scratch);

// Bytes of one thread's scratch, 64-byte aligned; the same for every unit.
constexpr size_t kScratchBytes = 288 * 1024;

void run_tile_portable(const TileTask& task, void* scratch);
void run_tile_avx2(const TileTask& task, void* scratch);
void run_tile_avx512(const TileTask& task, void* scratch);

}  // namespace vca::cpu
