// SPDX-License-Identifier: Apache-2.0
// Times of the grouping kernels, each by name.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <typeinfo>
#include <vector>

#include "kernels/group/stream.cuh"

#define CHECK(call)                                                   \
  do {                                                                \
    const cudaError_t status_ = (call);                               \
    if (status_ != cudaSuccess) {                                     \
      std::printf("FAILED %s:%d %s: %s\n", __FILE__, __LINE__, #call, \
                  cudaGetErrorString(status_));                       \
      std::exit(1);                                                   \
    }                                                                 \
  } while (0)

namespace vca::tests {

// Events around every launch.
class TimedLauncher {
 public:
  explicit TimedLauncher(cudaStream_t stream) : inner_(stream), stream_(stream) {}
  void upload(void* to, const std::vector<uint8_t>& bytes) { inner_.upload(to, bytes); }
  template <class Kernel, class... Args>
  void launch(kernels::group::Grid grid, const kernels::group::Params& params, int64_t items,
              Args... args) {
    cudaEvent_t a, b;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    CHECK(cudaEventRecord(a, stream_));
    inner_.launch<Kernel>(grid, params, items, args...);
    CHECK(inner_.status());
    CHECK(cudaEventRecord(b, stream_));
    int status = 0;
    char* name = abi::__cxa_demangle(typeid(Kernel).name(), nullptr, nullptr, &status);
    spans_.push_back({name, a, b});
    std::free(name);
  }
  struct Sum {
    int n = 0;
    float ms = 0;
  };
  std::map<std::string, Sum> sums() {
    CHECK(cudaStreamSynchronize(stream_));
    std::map<std::string, Sum> out;
    for (auto& s : spans_) {
      float ms = 0;
      CHECK(cudaEventElapsedTime(&ms, s.a, s.b));
      out[s.name].n += 1;
      out[s.name].ms += ms;
      cudaEventDestroy(s.a);
      cudaEventDestroy(s.b);
    }
    spans_.clear();
    return out;
  }

 private:
  struct Span {
    std::string name;
    cudaEvent_t a, b;
  };
  kernels::group::StreamLauncher inner_;
  cudaStream_t stream_;
  std::vector<Span> spans_;
};

template <class Run>
float median_ms(cudaStream_t stream, int repeats, const Run& run) {
  std::vector<float> times;
  cudaEvent_t a, b;
  CHECK(cudaEventCreate(&a));
  CHECK(cudaEventCreate(&b));
  for (int i = 0; i < repeats; ++i) {
    CHECK(cudaEventRecord(a, stream));
    run();
    CHECK(cudaEventRecord(b, stream));
    CHECK(cudaEventSynchronize(b));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, a, b));
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

inline void print(const char* title, TimedLauncher& timed) {
  float total = 0;
  std::printf("%s, kernel by kernel (ms, launches)\n", title);
  for (const auto& [name, sum] : timed.sums()) {
    std::printf("  %-44s %7.4f  %d\n", name.c_str(), static_cast<double>(sum.ms), sum.n);
    total += sum.ms;
  }
  std::printf("  %-44s %7.4f\n", "sum", static_cast<double>(total));
}

}  // namespace vca::tests
