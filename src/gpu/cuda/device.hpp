// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime as this library uses it: errors, the current device, pointers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

namespace vca::gpu {

// Throws VCA_ERR_INTERNAL with CUDA's own name and text.
void check(cudaError_t status, const char* what);

// Why the kernels of compute capability 9.0 cannot run on this device; "" when they can.
std::string device_refusal(int ordinal);

// Makes a device current, and the caller's one again at the end. A stream that is being captured
// forbids its thread more than a launch needs (loading a kernel's code for the first time, for
// instance), so the capture mode is relaxed meanwhile. Forgets an error that an earlier CUDA call
// has already returned to the caller: it would look like ours.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int ordinal_, before_ = 0;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Refuses a pointer that kernels on the device cannot follow: reading it would kill the caller's
// whole CUDA context. NULL passes.
void require_on_device(const char* name, const void* pointer, int ordinal);

}  // namespace vca::gpu
