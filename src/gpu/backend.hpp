// SPDX-License-Identifier: Apache-2.0
// Calls whose tensors live on a CUDA device. Two implementations of one header: cuda/ in a build
// with VCA_CUDA, unavailable.cpp in any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/request.hpp"

namespace vca::gpu {

// Whether this build has CUDA kernels.
bool built();

// Why the sm_90 kernels cannot run the request; "" when they can. Everything that a machine without
// a GPU can tell comes before the driver is asked.
std::string refusal(const core::Request& request);

// Static texts for vca_attn_info.
struct Texts {
  const char* kernel;
  const char* schedule;
  const char* mma_model;
  const char* evidence;
};
Texts texts(const core::Request& request);

// The exported functions on a valid request on a device; VCA_ERR_UNSUPPORTED with the refusal. No
// allocation, no synchronisation, capturable; the current device is restored.
int64_t workspace_bytes(const core::Request& request);
void prepare(const core::Request& request, void* workspace, size_t bytes, void* stream);
void attend(const core::Request& request, void* workspace, size_t bytes, void* stream);
void run(const core::Request& request, void* workspace, size_t bytes, void* stream);

// The group state of a call on a device, in the device's memory: docs/grouping.md.
int64_t state_bytes(const core::Request& request);
void init_state(const core::Request& request, void* state, size_t bytes, void* stream);
// Whether a buffer is the device's (or managed), for functions that get no descriptor.
bool owns(const void* memory);
// VCA_ERR_STATE where the bytes or the address cannot be a state's.
void reset_state(void* state, size_t bytes, void* stream);

}  // namespace vca::gpu
