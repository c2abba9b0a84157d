// SPDX-License-Identifier: Apache-2.0
// A build without CUDA: validation has refused device tensors before any of this is reached, except
// for vca_attn_explain.
#include "core/status.hpp"
#include "gpu/backend.hpp"

namespace vca::gpu {
namespace {

[[noreturn]] void refuse(const core::Request& request) {
  core::fail(VCA_ERR_UNSUPPORTED,
             {refusal(request), "CUDA device " + core::to_text(int64_t{request.desc.device}),
              "VCA_DEVICE_CPU (-1)", "copy the tensors to host memory and set device = -1"});
}

}  // namespace

bool built() { return false; }
std::string refusal(const core::Request&) { return "this build has no CUDA kernels"; }
Texts texts(const core::Request& request) { refuse(request); }
int64_t workspace_bytes(const core::Request& request) { refuse(request); }
void prepare(const core::Request& request, void*, size_t, void*) { refuse(request); }
void attend(const core::Request& request, void*, size_t, void*) { refuse(request); }
void run(const core::Request& request, void*, size_t, void*) { refuse(request); }
int64_t state_bytes(const core::Request& request) { refuse(request); }
void init_state(const core::Request& request, void*, size_t, void*) { refuse(request); }
bool owns(const void*) { return false; }
void reset_state(void*, size_t, void*) {}

}  // namespace vca::gpu
