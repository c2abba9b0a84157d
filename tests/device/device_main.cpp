// SPDX-License-Identifier: Apache-2.0
// Exit code 2 without a device of compute capability 9.0, 1 when a test fails.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "device/memory.hpp"
#include "vca/vca.h"

namespace vca::tests {
namespace {

int started = 0;
class CountTests : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { ++started; }
};

// VCA_TEST_SECONDS=N: tests that would begin later than that are skipped, so that a slow tool still
// comes to its summary. The one that runs at that moment goes on.
class TimeLimit : public testing::EmptyTestEventListener {
 public:
  explicit TimeLimit(double seconds) : seconds_(seconds) {}

 private:
  void OnTestStart(const testing::TestInfo&) override {
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - begin_;
    if (gone.count() > seconds_) GTEST_SKIP() << "VCA_TEST_SECONDS is over";
  }
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const double seconds_;
};

}  // namespace

int tests_started() { return started; }

}  // namespace vca::tests

int main(int argc, char** argv) {
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess ||
      major != 9) {
    std::printf("needs a GPU of compute capability 9.0\n");
    return 2;
  }
  testing::InitGoogleTest(&argc, argv);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new vca::tests::CountTests);
  if (const char* seconds = std::getenv("VCA_TEST_SECONDS"))
    listeners.Append(new vca::tests::TimeLimit(std::atof(seconds)));
  std::printf("vcattn %s, %d device(s)%s\n", vca_version(), vca::tests::device_count(),
              vca::tests::small_problems() ? ", small problems" : "");
  return RUN_ALL_TESTS();
}
