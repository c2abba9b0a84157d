// SPDX-License-Identifier: Apache-2.0
// Inputs of a benchmark and what the answer should be. Every element is a function of its place in
// the logical tensor alone, so that a head can be made again without the others, whatever the
// memory layout and the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem_text.hpp"

namespace vca::tools {

// Row (b, h, s) of q (0), k (1) or v (2): d elements of the problem's type, standard normal (one of
// 65,536 equally likely quantiles each).
void normal_row(const core::ProblemText& p, int which, int64_t b, int64_t h, int64_t s,
                uint8_t* out);

// The bytes of a whole buffer (core::view_of).
std::vector<uint8_t> normal_buffer(const core::ProblemText& p, int buffer, int threads);

// Some query rows and their FP64 attention on the stored inputs.
struct SampledRows {
  struct Place {
    int64_t b, h, s;
  };
  std::vector<Place> places;
  std::vector<double> o;  // [places][d]
};

// Up to 8 rows of each of up to 4 (batch, query head) pairs, evenly spread.
SampledRows exact_sample(const core::ProblemText& p, int threads);

struct SampledError {
  double all = 0;         // sqrt(sum |o - o*|^2 / sum |o*|^2) over all rows
  double worst_head = 0;  // the largest of the heads' own; NaN when any is
};

// `o`: [places][d] in the problem's type. NaN when an output is.
SampledError relative_error(const core::ProblemText& p, const SampledRows& exact,
                            const std::vector<uint8_t>& o);

}  // namespace vca::tools
