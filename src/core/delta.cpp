// SPDX-License-Identifier: Apache-2.0
#include "core/delta.hpp"

#include <cstdlib>
#include <string>

#include "core/status.hpp"

namespace vca::core {
namespace {

constexpr const char* kVariable = "VCATTN_DELTA_MIB";
constexpr int64_t kDefaultMib = 256, kLargestMib = int64_t{1} << 20;

}  // namespace

int64_t delta_cap_bytes() {
  const char* value = std::getenv(kVariable);
  if (value == nullptr || *value == '\0') return kDefaultMib << 20;
  int64_t mib = 0;
  for (const char* c = value; *c != '\0' && mib <= kLargestMib; ++c)
    mib = *c >= '0' && *c <= '9' ? mib * 10 + (*c - '0') : kLargestMib + 1;
  if (mib < 1 || mib > kLargestMib) {
    invalid(std::string("the environment variable ") + kVariable + " is no number of MiB",
            "\"" + std::string(value) + "\"", "1 .. " + std::to_string(kLargestMib),
            "unset the variable for 256 MiB");
  }
  return mib << 20;
}

std::vector<int64_t> delta_chunk_ends(const std::vector<int64_t>& row_bytes, int64_t cap_bytes) {
  std::vector<int64_t> ends;
  int64_t bytes = 0;
  const auto rows = static_cast<int64_t>(row_bytes.size());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t more = row_bytes[static_cast<size_t>(row)];
    if (bytes > 0 && bytes + more > cap_bytes) {
      ends.push_back(row);
      bytes = 0;
    }
    bytes += more;
  }
  if (rows > 0) ends.push_back(rows);
  return ends;
}

}  // namespace vca::core
