// SPDX-License-Identifier: Apache-2.0
// The self test passes here, and every golden number in it is looked at.
#include "tools/vcattn/selftest.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace vca::tools {
namespace {

std::vector<std::string> failures(const SelftestGoldens& goldens) {
  std::vector<std::string> names;
  const int failed = run_selftest(
      goldens, [&](const std::string& name, const std::string& error, const std::string&) {
        if (!error.empty()) names.push_back(name + ": " + error);
      });
  EXPECT_EQ(static_cast<size_t>(failed), names.size());
  return names;
}

TEST(Selftest, PassesHere) {
  for (const std::string& failure : failures(kSelftestGoldens)) ADD_FAILURE() << failure;
}

TEST(Selftest, EveryGoldenCanFail) {
  constexpr uint64_t SelftestGoldens::*kFields[] = {
      &SelftestGoldens::e4m3,   &SelftestGoldens::int8,    &SelftestGoldens::bf16,
      &SelftestGoldens::fp16,   &SelftestGoldens::ue8m0,   &SelftestGoldens::pow2,
      &SelftestGoldens::kdtree, &SelftestGoldens::vsmooth, &SelftestGoldens::kmeans};
  static_assert(sizeof kFields / sizeof kFields[0] == sizeof(SelftestGoldens) / sizeof(uint64_t));
  for (const auto field : kFields) {
    SelftestGoldens wrong = kSelftestGoldens;
    wrong.*field ^= 1;
    EXPECT_EQ(failures(wrong).size(), 1u);
  }
}

}  // namespace
}  // namespace vca::tools
