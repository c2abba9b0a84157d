// SPDX-License-Identifier: Apache-2.0
// The checks of `vcattn selftest`: does this build, on this machine, still give the bits of the
// specification? Apart from the command so that a test can see them fail.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace vca::tools {

// FNV-1a hashes over the outputs of the formats and of the groupings.
struct SelftestGoldens {
  uint64_t e4m3, int8, bf16, fp16, ue8m0, pow2;
  uint64_t kdtree, vsmooth, kmeans;
};
extern const SelftestGoldens kSelftestGoldens;

// Reports every check as (name, what went wrong or "", remark); returns how many failed.
using SelftestReport =
    std::function<void(const std::string& name, const std::string& error, const std::string& note)>;
int run_selftest(const SelftestGoldens& goldens, const SelftestReport& report);

}  // namespace vca::tools
