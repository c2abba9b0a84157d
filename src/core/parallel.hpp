// SPDX-License-Identifier: Apache-2.0
// A parallel loop that exceptions can leave: OpenMP itself terminates the program on one.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

#include "core/float_env.hpp"

namespace vca::core {

// Threads beyond the processors only wait for each other, OpenMP ends the process when it cannot
// start one, and its own memory for a team comes from the caller's stack. No result depends on the
// number, so that a larger one is a wish, not an error. Sixteen on a smaller machine: enough for
// whoever wants to see that.
inline constexpr int kMaxThreads = 16;

// Threads of a call: 0 means the OpenMP default.
inline int thread_count(int requested) {
  const int wanted = requested > 0 ? requested : omp_get_max_threads();
  return std::min(wanted, std::max(kMaxThreads, omp_get_num_procs()));
}

// body(index, thread) for every index in [0, n). Of several exceptions the one of the lowest index
// is rethrown, so that the reported error does not depend on the schedule.
template <class Body>
void parallel_for(int64_t n, int threads, Body&& body) {
  if (n <= 0) return;
  if (threads > n) threads = static_cast<int>(n);
  std::exception_ptr error;
  int64_t error_index = n;
#pragma omp parallel num_threads(threads)
  {
    const DefaultFloatEnv environment;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < n; ++i) {
      try {
        body(i, omp_get_thread_num());
      } catch (...) {
#pragma omp critical(vca_parallel_for_error)
        if (i < error_index) {
          error_index = i;
          error = std::current_exception();
        }
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace vca::core
