// SPDX-License-Identifier: Apache-2.0
// The page of `vcattn compare --report`: one HTML file that needs nothing else, with charts as
// inline SVG. No script, no network, light and dark.
#pragma once

#include <string>

#include "tools/vcattn/compare_run.hpp"

namespace vca::tools {

inline constexpr const char* kReportFile = "index.html";

// Needs a result of a run with options.curves.
std::string report_page(const CompareInput& in, const CompareOptions& options,
                        const CompareResult& result, const std::string& grouping);

}  // namespace vca::tools
