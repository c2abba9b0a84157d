// SPDX-License-Identifier: Apache-2.0
// Device memory for tests, with guard bytes on both sides, and the switches of the test programs.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace vca::tests {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorName(status) + ", " +
                           cudaGetErrorString(status));
}

inline bool switched_on(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string(value) != "0";
}

// Few small problems: for a sanitizer, which slows every access down, and for the emulated device.
inline bool small_problems() {
#if defined(VCA_EMULATED_DEVICE)
  return true;
#else
  static const bool on = switched_on("VCA_TEST_SMALL");
  return on;
#endif
}

// Memory that nobody initialised stays so: for initcheck, which a fill would blind.
inline bool leave_uninitialised() {
  static const bool on = switched_on("VCA_TEST_UNINITIALISED");
  return on;
}

class DeviceBytes {
 public:
  static constexpr size_t kGuard = 4096;  // keeps the alignment of cudaMalloc
  static constexpr uint8_t kGuardByte = 0x5C;

  explicit DeviceBytes(size_t n) : size_(n) {
    check(cudaMalloc(&base_, n + 2 * kGuard), "cudaMalloc");
    check(cudaMemset(base_, kGuardByte, kGuard), "cudaMemset");
    check(cudaMemset(data() + n, kGuardByte, kGuard), "cudaMemset");
  }
  ~DeviceBytes() { cudaFree(base_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(base_) + kGuard; }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }
  void fill(int byte) const {
    if (size_ != 0) check(cudaMemset(data(), byte, size_), "cudaMemset");
  }
  void fill(const std::vector<uint8_t>& pattern) const {
    std::vector<uint8_t> bytes(size_);
    for (size_t i = 0; i < size_; ++i) bytes[i] = pattern[i % pattern.size()];
    upload(bytes.data());
  }
  void upload(const void* from) const {
    if (size_ != 0) check(cudaMemcpy(data(), from, size_, cudaMemcpyHostToDevice), "copy in");
  }
  std::vector<uint8_t> download() const {
    std::vector<uint8_t> out(size_);
    if (size_ != 0)
      check(cudaMemcpy(out.data(), data(), size_, cudaMemcpyDeviceToHost), "copy out");
    return out;
  }
  bool guards_intact() const {
    uint8_t guard[2 * kGuard];
    check(cudaMemcpy(guard, base_, kGuard, cudaMemcpyDeviceToHost), "copy out");
    check(cudaMemcpy(guard + kGuard, data() + size_, kGuard, cudaMemcpyDeviceToHost), "copy out");
    return std::all_of(guard, guard + 2 * kGuard, [](uint8_t b) { return b == kGuardByte; });
  }

 private:
  void* base_ = nullptr;
  size_t size_;
};

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT: stands for the handle
  void wait() const { check(cudaStreamSynchronize(stream_), "stream"); }

 private:
  cudaStream_t stream_ = nullptr;
};

inline int current_device() {
  int device = -1;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
inline void use_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }
inline int device_count() {
  int n = 0;
  check(cudaGetDeviceCount(&n), "cudaGetDeviceCount");
  return n;
}
// Tests of this program that have begun (device_main.cpp).
int tests_started();

inline void wait_for_device() { check(cudaDeviceSynchronize(), "kernels"); }

}  // namespace vca::tests
