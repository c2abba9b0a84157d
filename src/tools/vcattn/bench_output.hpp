// SPDX-License-Identifier: Apache-2.0
// A benchmark as a table for people and as a result file (bench/schema.py says what is in one).
#pragma once

#include <string>

#include "tools/vcattn/bench_run.hpp"

namespace vca::tools {

// What a figure was made with.
struct BenchSetting {
  bool on_gpu = false;
  std::string name;          // of the GPU or CPU
  std::string driver;        // of the GPU
  std::string clock_source;  // "NVML", or why clock and power are missing
  std::string note;          // about the build and the options
};
BenchSetting bench_setting(const Place& place, const BenchOptions& options);

// The commit that the command was built from, "-dirty" behind it when files differed, "unknown"
// outside a repository.
std::string build_commit();

std::string bench_table(const BenchSetting& setting, const BenchOptions& options,
                        const BenchResult& result);

// `date`: ISO 8601, UTC, to the second.
std::string bench_json(const BenchSetting& setting, const BenchOptions& options,
                       const BenchResult& result, const std::string& date);
std::string utc_now();

// Names and texts of problems, as `vcattn bench --list` prints them.
std::string problem_list(const std::vector<NamedProblem>& problems);

}  // namespace vca::tools
