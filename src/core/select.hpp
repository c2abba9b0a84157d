// SPDX-License-Identifier: Apache-2.0
// Which kernel runs a request: an ordered list of candidates, each with the reason why not.
#pragma once

#include <string>
#include <vector>

#include "core/request.hpp"
#include "cpu/backend.hpp"

namespace vca::core {

struct Candidate {
  const char* kernel;   // "cpu/avx512"
  std::string refusal;  // "" when it could run
};

struct Selection {
  std::vector<Candidate> candidates;  // in order of preference
  int chosen = -1;                    // index, or -1
  cpu::Isa isa = cpu::Isa::portable;  // of the chosen one
};

// Reads the environment variable VCATTN_CPU_ISA (portable, avx2, avx512), which forces one unit; a
// value that does not exist or cannot run here is an error.
Selection select(const Request& request);

// Of a request in host memory; VCA_ERR_UNSUPPORTED when nothing can run.
cpu::Isa select_isa(const Request& request);

std::string explain(const Request& request);

// Texts for vca_attn_info.
const char* mma_text(const spec::Recipe& recipe);

}  // namespace vca::core
