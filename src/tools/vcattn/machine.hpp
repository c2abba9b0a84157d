// SPDX-License-Identifier: Apache-2.0
// What the machine says about itself.
#pragma once

#include <string>

namespace vca::tools {

// "unknown" when /proc/cpuinfo does not tell.
std::string cpu_model();

}  // namespace vca::tools
