// SPDX-License-Identifier: Apache-2.0
// The exported functions: nothing but the border. Each validates, does its work inside `guarded`,
// and returns.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/execute.hpp"
#include "core/group_state.hpp"
#include "core/names.hpp"
#include "core/ref.hpp"
#include "core/select.hpp"
#include "core/status.hpp"
#include "gpu/backend.hpp"
#include "spec/attention.hpp"
#include "vca/vca.h"

#ifndef VCA_VERSION_STRING
#define VCA_VERSION_STRING "0.0.0"
#endif

namespace {

using namespace vca::core;  // NOLINT: the border only

template <class T>
T* not_null(T* pointer, const char* name) {
  if (pointer == nullptr) {
    invalid(std::string(name) + " is NULL", "NULL", "somewhere to put the result", "");
  }
  return pointer;
}

// Of functions that know nothing of devices.
void host_only(const Request& request, const char* function) {
  if (!request.on_device()) return;
  fail(VCA_ERR_UNSUPPORTED,
       {std::string(function) + " works on host memory only",
        "CUDA device " + to_text(int64_t{request.desc.device}), "VCA_DEVICE_CPU (-1)",
        "lengths are read on the CPU, and the portable copy of a group state is made there"});
}

// A descriptor whose tensors are in host memory.
Request validate_host(const vca_attn_desc* desc, const char* function) {
  Request request = validate(desc, Use::query);
  host_only(request, function);
  return request;
}

// A buffer that the CPU reads or writes and that no call's device speaks for: following a device's
// pointer here would end the process.
void in_host_memory(const void* buffer, const char* name, const char* hint) {
  if (buffer == nullptr || !vca::gpu::owns(buffer)) return;
  invalid(std::string(name) + " lies in the memory of a CUDA device",
          "a pointer to device or managed memory", "host memory", hint);
}
constexpr const char* kCopyBlob = "keep the blob in host memory, or copy it there first";

void query_device(const Request& request, vca_attn_info& out) {
  const vca::gpu::Texts texts = vca::gpu::texts(request);
  out.target = VCA_TARGET_SM90;
  out.kernel = texts.kernel;
  out.schedule = texts.schedule;
  out.mma_model = texts.mma_model;
  out.evidence = texts.evidence;
  out.workspace_bytes = static_cast<size_t>(vca::gpu::workspace_bytes(request));
  out.state_bytes = static_cast<size_t>(vca::gpu::state_bytes(request));
}

void query_host(const Request& request, vca_attn_info& out) {
  const vca::spec::Recipe& recipe = *request.problem.recipe;
  const vca::cpu::Isa isa = select_isa(request);
  out.target = VCA_TARGET_CPU;
  out.kernel = request.exact() ? "cpu/fp64" : vca::cpu::isa_name(isa);
  out.schedule = vca::spec::schedule_name(recipe, vca::spec::Target::cpu);
  out.mma_model = mma_text(recipe);
  out.evidence = "specification";
  out.workspace_bytes = static_cast<size_t>(workspace_bytes(request));
  out.state_bytes = static_cast<size_t>(GroupState::bytes_needed(request));
}

void no_stream(void* stream) {
  if (stream != nullptr) {
    invalid("stream is not NULL", "a stream", "NULL on the CPU",
            "CUDA streams belong to CUDA tensors");
  }
}

}  // namespace

extern "C" {

const char* vca_version(void) { return VCA_VERSION_STRING; }
int32_t vca_spec_version(void) { return vca::spec::kSpecVersion; }
const char* vca_last_error(void) { return last_error(); }

const char* vca_status_str(vca_status status) {
  switch (status) {
    case VCA_OK:
      return "ok";
    case VCA_ERR_INVALID_ARGUMENT:
      return "invalid argument";
    case VCA_ERR_UNSUPPORTED:
      return "unsupported";
    case VCA_ERR_NON_FINITE:
      return "non-finite input";
    case VCA_ERR_WORKSPACE:
      return "workspace";
    case VCA_ERR_OUT_OF_MEMORY:
      return "out of memory";
    case VCA_ERR_STATE:
      return "group state";
    case VCA_ERR_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

const char* vca_recipe_str(int32_t recipe) { return recipe_name(recipe); }
const char* vca_grouping_str(int32_t grouping) { return grouping_name(grouping); }
const char* vca_target_str(int32_t target) { return target_name(target); }

vca_status vca_recipe_parse(const char* name, int32_t* recipe, int32_t* hadamard) {
  return guarded([&] { parse_recipe(name, recipe, hadamard); });
}
vca_status vca_grouping_parse(const char* name, int32_t* grouping) {
  return guarded([&] { parse_grouping(name, grouping); });
}
vca_status vca_target_parse(const char* name, int32_t* target) {
  return guarded([&] { parse_target(name, target); });
}

vca_status vca_attn_query(const vca_attn_desc* desc, vca_attn_info* info) {
  return guarded([&] {
    not_null(info, "info");
    // Only written, so bytes behind what this version knows do not matter.
    if (info->struct_size < sizeof(vca_attn_info)) {
      invalid("vca_attn_info.struct_size is not a size of this struct",
              std::to_string(info->struct_size), std::to_string(sizeof(vca_attn_info)) + " or more",
              "set it to sizeof(vca_attn_info)");
    }
    const Request request = validate(desc, Use::query);
    const vca::spec::Problem& p = request.problem;
    vca_attn_info out{};
    out.struct_size = sizeof(out);
    out.recipe = static_cast<int32_t>(p.recipe->id);
    out.grouping = grouping_number(p.grouping);
    out.hadamard = p.hadamard ? 1 : 0;
    if (request.on_device()) {
      query_device(request, out);
    } else {
      query_host(request, out);
    }
    *info = out;
  });
}

vca_status vca_attn_explain(const vca_attn_desc* desc, char* buf, size_t size, size_t* needed) {
  return guarded([&] {
    if (buf == nullptr && (size != 0 || needed == nullptr)) {
      invalid("buf is NULL", std::to_string(size) + " bytes",
              "a buffer, or NULL with size 0 and needed set", "");
    }
    const std::string text = explain(validate(desc, Use::explain));
    if (needed != nullptr) *needed = text.size() + 1;
    if (size == 0) return;
    const size_t n = std::min(text.size(), size - 1);
    std::memcpy(buf, text.data(), n);
    buf[n] = '\0';
  });
}

vca_status vca_attn_workspace(const vca_attn_desc* desc, size_t* bytes) {
  return guarded([&] {
    not_null(bytes, "bytes");
    const Request request = validate(desc, Use::query);
    *bytes = static_cast<size_t>(request.on_device() ? vca::gpu::workspace_bytes(request)
                                                     : workspace_bytes(request));
  });
}

vca_status vca_attn_prepare(const vca_attn_desc* desc, void* workspace, size_t bytes,
                            void* stream) {
  return guarded([&] {
    const Request request = validate(desc, Use::prepare);
    if (request.on_device()) return vca::gpu::prepare(request, workspace, bytes, stream);
    no_stream(stream);
    prepare(request, workspace, bytes);
  });
}

vca_status vca_attn_attend(const vca_attn_desc* desc, void* workspace, size_t bytes, void* stream) {
  return guarded([&] {
    const Request request = validate(desc, Use::attend);
    if (request.on_device()) return vca::gpu::attend(request, workspace, bytes, stream);
    no_stream(stream);
    attend(request, workspace, bytes);
  });
}

vca_status vca_attn_run(const vca_attn_desc* desc, void* workspace, size_t bytes, void* stream) {
  return guarded([&] {
    const Request request = validate(desc, Use::run);
    if (request.on_device()) return vca::gpu::run(request, workspace, bytes, stream);
    no_stream(stream);
    run(request, workspace, bytes);
  });
}

vca_status vca_ref_attn(const vca_attn_desc* desc, int32_t target, int64_t b, int64_t h,
                        int64_t row0, int64_t nrows, vca_ref_io* io) {
  return guarded([&] { ref_attn(validate(desc, Use::ref), target, b, h, row0, nrows, io); });
}

vca_status vca_ref_blocks(const vca_attn_desc* desc, int64_t b, int64_t* n_valid,
                          int64_t* n_blocks) {
  return guarded([&] {
    const BlockCounts counts = ref_blocks(validate_host(desc, "vca_ref_blocks"), b);
    if (n_valid != nullptr) *n_valid = counts.n_valid;
    if (n_blocks != nullptr) *n_blocks = counts.n_blocks;
  });
}

vca_status vca_group_state_bytes(const vca_attn_desc* desc, size_t* bytes) {
  return guarded([&] {
    not_null(bytes, "bytes");
    const Request request = validate(desc, Use::query);
    *bytes = static_cast<size_t>(request.on_device() ? vca::gpu::state_bytes(request)
                                                     : GroupState::bytes_needed(request));
  });
}

vca_status vca_group_state_init(const vca_attn_desc* desc, void* state, size_t bytes,
                                void* stream) {
  return guarded([&] {
    const Request request = validate(desc, Use::query);
    if (request.on_device()) return vca::gpu::init_state(request, state, bytes, stream);
    no_stream(stream);
    in_host_memory(state, "state",
                   "set desc.device to the device of the tensors, or give a host buffer");
    GroupState::init(request, state, bytes);
  });
}

vca_status vca_group_state_reset(void* state, size_t bytes, void* stream) {
  return guarded([&] {
    if (state != nullptr && vca::gpu::owns(state))
      return vca::gpu::reset_state(state, bytes, stream);
    no_stream(stream);
    GroupState(nullptr, state, bytes).reset();
  });
}

vca_status vca_group_state_save(const void* state, size_t bytes, void* blob, size_t* blob_bytes) {
  return guarded([&] {
    not_null(blob_bytes, "blob_bytes");
    in_host_memory(state, "state",
                   "copy a state of the CPU backend to host memory first; one that was made for "
                   "CUDA tensors has another form, of which there is no portable copy");
    in_host_memory(blob, "blob", kCopyBlob);
    GroupState opened(nullptr, const_cast<void*>(state), bytes);  // save() only reads
    const std::vector<uint8_t> out = opened.save();
    if (blob != nullptr) {
      if (*blob_bytes < out.size()) {
        const std::string got = std::to_string(*blob_bytes) + " bytes";
        invalid("blob is too small", got, std::to_string(out.size()) + " bytes or more",
                "call with blob = NULL to learn the size");
      }
      std::memcpy(blob, out.data(), out.size());
    }
    *blob_bytes = out.size();
  });
}

vca_status vca_group_state_load(const vca_attn_desc* desc, void* state, size_t bytes,
                                const void* blob, size_t blob_bytes) {
  return guarded([&] {
    const Request request = validate_host(desc, "vca_group_state_load");
    in_host_memory(state, "state",
                   "give a host buffer; a state for CUDA tensors begins with vca_group_state_init");
    in_host_memory(blob, "blob", kCopyBlob);
    GroupState::load_blob(request, state, bytes, static_cast<const uint8_t*>(blob), blob_bytes);
  });
}

}  // extern "C"
