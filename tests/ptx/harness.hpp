// SPDX-License-Identifier: Apache-2.0
// Conformance cases of the instruction layer compile for two targets: the emulator (tests/ptx/
// conformance_test.cpp, in every test run) and a GPU (tests/ptx/conformance.cu). A case is a kernel
// that uses ptx:: only, data in buffers, and expected values from the specification on the host.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "ptx/ptx.hpp"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include "emu/launch.hpp"
#endif

namespace vca::tests {

// Collects differences; the first few are kept as text.
class Report {
 public:
  void fail(const std::string& what) {
    if (failures_++ < 8) text_ += "  " + what + "\n";
  }
  void count(int64_t compared) { compared_ += compared; }
  int64_t failures() const { return failures_; }
  int64_t compared() const { return compared_; }
  const std::string& text() const { return text_; }

 private:
  int64_t failures_ = 0;
  int64_t compared_ = 0;
  std::string text_;
};

struct Shape {
  uint32_t grid = 1;
  uint32_t threads = 128;
  uint32_t smem_bytes = 0;
  uint32_t cluster = 1;  // CTAs of a cluster
};

// Memory that a kernel can reach, 1 KiB aligned.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t n, T fill = T{}) : host_(n, fill) {}
  explicit Buffer(const std::vector<T>& values) : host_(values) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T& operator[](size_t i) { return host_[i]; }
  const T& operator[](size_t i) const { return host_[i]; }
  size_t size() const { return host_.size(); }
  size_t bytes() const { return host_.size() * sizeof(T); }

#if defined(__CUDACC__)
  ~Buffer() { cudaFree(device_); }
  T* device() {
    if (device_ == nullptr) cudaMalloc(&device_, bytes() + 1024);
    return device_;
  }
  void upload() { cudaMemcpy(device(), host_.data(), bytes(), cudaMemcpyHostToDevice); }
  void download() { cudaMemcpy(host_.data(), device(), bytes(), cudaMemcpyDeviceToHost); }
#else
  T* device() {
    if (raw_.empty()) raw_.resize(bytes() + 1024);
    return reinterpret_cast<T*>(raw_.data() +
                                (1024 - reinterpret_cast<uintptr_t>(raw_.data()) % 1024) % 1024);
  }
  void upload() { std::memcpy(device(), host_.data(), bytes()); }
  void download() { std::memcpy(host_.data(), device(), bytes()); }
#endif

 private:
  std::vector<T> host_;
#if defined(__CUDACC__)
  T* device_ = nullptr;
#else
  std::vector<uint8_t> raw_;
#endif
};

#if defined(__CUDACC__)

template <class Kernel>
__global__ void __launch_bounds__(384, 1) run_kernel(Kernel kernel) {
  kernel();
}

// Runs the kernel and `check`s what it left behind.
template <class Kernel, class Check>
void run(Report& report, const Shape& shape, const Kernel& kernel, Check check) {
  cudaFuncSetAttribute(run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(shape.smem_bytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.smem_bytes;
  config.attrs = &cluster;
  config.numAttrs = shape.cluster > 1 ? 1 : 0;
  cudaError_t status = cudaLaunchKernelEx(&config, run_kernel<Kernel>, kernel);
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  if (status != cudaSuccess) {
    report.fail(std::string("CUDA: ") + cudaGetErrorString(status));
    return;
  }
  check();
}

#else

// The same under every scheduler and three seeds.
template <class Kernel, class Check>
void run(Report& report, const Shape& shape, const Kernel& kernel, Check check) {
  for (const emu::Policy policy : emu::kAllPolicies) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      emu::LaunchConfig config;
      config.grid = shape.grid;
      config.cluster = shape.cluster;
      config.threads = shape.threads;
      config.smem_bytes = shape.smem_bytes;
      config.policy = policy;
      config.seed = seed;
      try {
        emu::launch(config, [&kernel] { kernel(); });
      } catch (const emu::Fault& fault) {
        report.fail(std::string(to_string(policy)) + ", seed " + std::to_string(seed) + ": " +
                    fault.what());
        return;
      }
      check();
    }
  }
}

#endif

// Downloads and compares bits.
template <class T>
void expect_equal(Report& report, const char* what, Buffer<T>& got, const std::vector<T>& want) {
  got.download();
  report.count(static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
    uint64_t got_bits = 0, want_bits = 0;
    std::memcpy(&got_bits, &got[i], sizeof(T));
    std::memcpy(&want_bits, &want[i], sizeof(T));
    char text[160];
    std::snprintf(text, sizeof(text), "%s[%zu]: got 0x%llx, expected 0x%llx", what, i,
                  static_cast<unsigned long long>(got_bits),
                  static_cast<unsigned long long>(want_bits));
    report.fail(text);
  }
}

// The same numbers on every host.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  uint32_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
  }
  // Uniform in [-limit, limit).
  float uniform(float limit) { return (static_cast<float>(bits() >> 8) * 0x1p-23f - 1.0f) * limit; }

 private:
  uint64_t state_;
};

struct Case {
  const char* name;
  void (*run)(Report& report);
};

}  // namespace vca::tests
