// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/device.hpp"

#include "core/status.hpp"

namespace vca::gpu {
namespace {

std::string text_of(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status);
}

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, ordinal), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // reported here; the caller's next call must not see it again
  core::fail(VCA_ERR_INTERNAL,
             {std::string("CUDA: ") + what + " failed", text_of(status), "",
              "the stream must belong to desc.device; an error of earlier work on the device shows "
              "up here, too (CUDA_LAUNCH_BLOCKING=1 tells them apart)"});
}

std::string device_refusal(int ordinal) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return "the driver offers no device (" + text_of(status) + ")";
  }
  if (ordinal >= devices) {
    return "there is no CUDA device " + std::to_string(ordinal) + " (" + std::to_string(devices) +
           " visible)";
  }
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, ordinal);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, ordinal);
  if (major == 9 && minor == 0) return "";
  return "device " + std::to_string(ordinal) + " has compute capability " + std::to_string(major) +
         "." + std::to_string(minor) + ", and this kernel runs on 9.0 only";
}

DeviceScope::DeviceScope(int ordinal) : ordinal_(ordinal) {
  cudaGetLastError();
  check(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ != ordinal_) check(cudaSetDevice(ordinal_), "cudaSetDevice");
  const cudaError_t status = cudaThreadExchangeStreamCaptureMode(&mode_);
  if (status == cudaSuccess) return;
  if (before_ != ordinal_) cudaSetDevice(before_);
  check(status, "cudaThreadExchangeStreamCaptureMode");
}

DeviceScope::~DeviceScope() {
  cudaThreadExchangeStreamCaptureMode(&mode_);
  if (before_ != ordinal_) cudaSetDevice(before_);
}

void require_on_device(const char* name, const void* pointer, int ordinal) {
  if (pointer == nullptr) return;
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != ordinal) {
    core::invalid(std::string(name) + " lies on another CUDA device",
                  "device " + std::to_string(attributes.device),
                  "desc.device = " + std::to_string(ordinal),
                  "set desc.device to where the tensors are");
  }
  // Where the device follows the host's page tables, every address of the process is good.
  if (attributes.type == cudaMemoryTypeUnregistered &&
      attribute(cudaDevAttrPageableMemoryAccess, ordinal) == 0) {
    core::invalid(std::string(name) + " is host memory that CUDA device " +
                      std::to_string(ordinal) + " cannot read",
                  "pageable memory", "memory of cudaMalloc, managed or pinned memory",
                  "copy it to the device, or set device = VCA_DEVICE_CPU");
  }
}

}  // namespace vca::gpu
