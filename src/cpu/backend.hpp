// SPDX-License-Identifier: Apache-2.0
// The CPU backend: attention on prepared operands, bit for bit what spec::attention_rows gives for
// Target::cpu, on whichever instruction-set unit runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cpu/kernel.hpp"
#include "spec/operands.hpp"
#include "spec/problem.hpp"

namespace vca::cpu {

enum class Isa { avx512, avx2, portable };  // in order of preference

inline constexpr Isa kIsas[] = {Isa::avx512, Isa::avx2, Isa::portable};

const char* isa_name(Isa isa);
// "" when the unit can run here, else why not.
std::string isa_refusal(Isa isa);

// One thread's working memory, not initialised: a tile writes what it reads, and zeros would cost a
// small call more than its attention.
class Scratch {
 public:
  Scratch() : memory_(new unsigned char[kScratchBytes + kAlign]) {}
  void* aligned() {
    const auto at = reinterpret_cast<uintptr_t>(memory_.get());
    return memory_.get() + (kAlign - at % kAlign) % kAlign;
  }
  // Outputs of a tile, FP32.
  float o[kTileRows * spec::kMaxHeadDim], l[kTileRows], m_run[kTileRows], lse[kTileRows];

 private:
  static constexpr size_t kAlign = 64;
  std::unique_ptr<unsigned char[]> memory_;
};

// Rows [row0, row0 + rows) of one head, rows <= kTileRows, in one row of its block mask if it has
// one, into scratch.o ([rows][d]), scratch.l and, when the operands hold q.k_offset, scratch.lse.
// Not for the recipe `exact`. With q means all rows share one of them, and `delta` holds its
// scores, one a column (spec::mean_scores); else null.
void attend_tile(Isa isa, const spec::Problem& p, const spec::KvOperands& kv,
                 const spec::QOperands& q, int64_t row0, int rows, const float* delta, bool lse,
                 Scratch& scratch);

}  // namespace vca::cpu
