// SPDX-License-Identifier: Apache-2.0
// Runs another program without a shell and takes what it prints.
#pragma once

#include <string>
#include <vector>

namespace vca::tools {

struct ProcessResult {
  bool started = false;  // false: not found on PATH or not executable
  int exit_code = -1;    // 128 + signal when a signal ended it
  std::string output;    // standard output and standard error
};

// arguments[0] is the program, looked up on PATH.
ProcessResult run_process(const std::vector<std::string>& arguments);

// Is there an executable file of that name on PATH?
bool program_exists(const std::string& name);

}  // namespace vca::tools
