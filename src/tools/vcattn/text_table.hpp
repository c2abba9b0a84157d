// SPDX-License-Identifier: Apache-2.0
// Tables for a terminal.
#pragma once

#include <string>
#include <vector>

namespace vca::tools {

// printf of one number.
std::string formatted(const char* format, double x);

// "0.482 %": three significant digits; "–" when undefined.
std::string percent_text(double fraction);

// Columns as wide as their widest cell, the first one to the left, a rule below the first row.
using TableRow = std::vector<std::string>;
std::string aligned(const std::vector<TableRow>& rows);

}  // namespace vca::tools
