// SPDX-License-Identifier: Apache-2.0
// The conformance cases on the emulator.
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "ptx/cases.hpp"

namespace vca::tests {

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

namespace {

class Conformance : public testing::TestWithParam<Case> {};

TEST_P(Conformance, EqualsTheSpecification) {
  Report report;
  GetParam().run(report);
  EXPECT_GT(report.compared(), 0);
  EXPECT_EQ(report.failures(), 0) << report.text();
}

INSTANTIATE_TEST_SUITE_P(Emulator, Conformance, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace vca::tests
