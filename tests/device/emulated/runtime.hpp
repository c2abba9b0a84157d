// SPDX-License-Identifier: Apache-2.0
// What the emulated kernels need of the emulated runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace vca::emulated {

// Puts work on a stream (NULL: the current device's default one), or into the graph that the stream
// is captured into. cudaErrorInvalidResourceHandle where the stream's device is not current.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

// Whether the pointer lies in memory of this device.
bool on_device(const void* pointer, int device);

}  // namespace vca::emulated
