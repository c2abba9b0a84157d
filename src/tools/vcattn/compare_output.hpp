// SPDX-License-Identifier: Apache-2.0
// The result of a comparison as a table for people and as JSON for programs. Fields of the JSON:
// docs/reading-the-report.md.
#pragma once

#include <string>

#include "tools/vcattn/compare_run.hpp"
#include "tools/vcattn/text_table.hpp"

namespace vca::tools {

std::string compare_table(const CompareInput& in, const CompareOptions& options,
                          const CompareResult& result);

// `grouping`: as given on the command line, "default" without.
std::string compare_json(const CompareInput& in, const CompareOptions& options,
                         const CompareResult& result, const std::string& grouping);

}  // namespace vca::tools
