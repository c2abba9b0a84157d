// SPDX-License-Identifier: Apache-2.0
// What `vcattn bench` wants of a runtime beyond the library: the name of a device, and events,
// which take the host's time when the stream comes to them.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstring>

#include "device/emulated/runtime.hpp"

using Clock = std::chrono::steady_clock;

struct CUevent_st {
  Clock::time_point at{};
  bool passed = false;
};

extern "C" {

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strncpy(properties->name, "emulated device", sizeof properties->name - 1);
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int) {
  std::strncpy(text, "0000:00:00.0", static_cast<size_t>(size) - 1);
  text[size - 1] = '\0';
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  cudaDeviceSynchronize();  // a queue may still hold it
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->passed = false;
  return vca::emulated::enqueue(stream, [event] {
    event->at = Clock::now();
    event->passed = true;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return event->passed ? cudaSuccess : cudaDeviceSynchronize();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  if (!begin->passed || !end->passed) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
  return cudaSuccess;
}

}  // extern "C"
