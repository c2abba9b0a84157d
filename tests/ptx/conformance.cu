// SPDX-License-Identifier: Apache-2.0
// The conformance cases on a Hopper GPU:
//   nvcc -std=c++20 --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a -fmad=false
//        -Xcompiler -ffp-contract=off -Isrc -Itests -o conformance tests/ptx/conformance.cu
//        src/spec/mma_model.cpp src/spec/tiles.cpp
// One line a case; exit code 1 on any difference.
#include <cstdio>

#include "ptx/cases.hpp"

int main() {
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
    std::printf("needs a GPU of compute capability 9.0\n");
    return 2;
  }
  int driver = 0;
  cudaDriverGetVersion(&driver);
  std::printf("%s, driver API %d\n", device.name, driver);
  bool ok = true;
  for (const vca::tests::Case& c : vca::tests::kCases) {
    vca::tests::Report report;
    c.run(report);
    std::printf("%-28s %lld values, %lld differ\n%s", c.name,
                static_cast<long long>(report.compared()),
                static_cast<long long>(report.failures()), report.text().c_str());
    ok = ok && report.failures() == 0 && report.compared() > 0;
  }
  return ok ? 0 : 1;
}
