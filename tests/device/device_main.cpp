// SPDX-License-Identifier: Apache-2.0
// Exit code 2 without a device of compute capability 9.0, 1 when a test fails.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "device/memory.hpp"
#include "vca/vca.h"

namespace vca::tests {
namespace {

int started = 0;
class CountTests : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { ++started; }
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
  testing::UnitTest::GetInstance()->listeners().Append(new vca::tests::CountTests);
  std::printf("vcattn %s, %d device(s)%s\n", vca_version(), vca::tests::device_count(),
              vca::tests::small_problems() ? ", small problems" : "");
  return RUN_ALL_TESTS();
}
