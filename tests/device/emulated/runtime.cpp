// SPDX-License-Identifier: Apache-2.0
// A CUDA runtime for machines without a GPU: as much of it as the library and its device tests
// call. Two devices of compute capability 9.0 whose memory is host memory. Work on a stream waits
// until somebody synchronises, streams in the reverse order of their creation: a call that leaned
// on its work being done, or on host memory that has gone meanwhile, is seen. Kernels: launch.cpp.
//
// What is checked as the real one does: the device of a stream is the current one when work is put
// on it, nothing but capturable calls while a stream is captured.
#include "device/emulated/runtime.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

namespace {

constexpr int kDevices = 2;
constexpr int kMultiprocessors = 3;  // few, so that a CTA works on several tiles

using Work = std::function<void()>;

struct Allocation {
  size_t bytes;
  int device;
};

struct State {
  std::map<const char*, Allocation> memory;
  std::vector<CUstream_st*> streams;  // in creation order, with the default streams first
  int current = 0;
  cudaError_t last = cudaSuccess;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};

}  // namespace

struct CUstream_st {
  int device;
  std::vector<Work> pending;
  CUgraph_st* capture = nullptr;
};
struct CUgraph_st {
  std::vector<Work> nodes;
};
struct CUgraphExec_st {
  std::vector<Work> nodes;
};

namespace {

CUstream_st default_streams[kDevices] = {{0, {}, nullptr}, {1, {}, nullptr}};

State& state() {
  static State s{{}, {&default_streams[0], &default_streams[1]}, 0, cudaSuccess, {}};
  return s;
}

cudaError_t done(cudaError_t status) {
  if (status != cudaSuccess) state().last = status;
  return status;
}

CUstream_st* stream_of(cudaStream_t stream) {
  return stream == nullptr ? &default_streams[state().current] : stream;
}

bool capturing() {
  return std::any_of(state().streams.begin(), state().streams.end(),
                     [](const CUstream_st* s) { return s->capture != nullptr; });
}

void run(CUstream_st& stream) {
  std::vector<Work> work;
  work.swap(stream.pending);
  for (const Work& w : work) w();
}

void run_everything() {
  for (auto s = state().streams.rbegin(); s != state().streams.rend(); ++s) run(**s);
}

const std::pair<const char* const, Allocation>* find(const void* at) {
  const char* const p = static_cast<const char*>(at);
  auto after = state().memory.upper_bound(p);
  if (after == state().memory.begin()) return nullptr;
  --after;
  return p < after->first + after->second.bytes ? &*after : nullptr;
}

// A call that waits: not while anything is captured, unless the thread relaxed that.
cudaError_t synchronise() {
  if (capturing()) return done(cudaErrorStreamCaptureUnsupported);
  run_everything();
  return cudaSuccess;
}

}  // namespace

namespace vca::emulated {

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  CUstream_st* const s = stream_of(stream);
  if (s->device != state().current) return done(cudaErrorInvalidResourceHandle);
  if (stream == nullptr && capturing()) return done(cudaErrorStreamCaptureImplicit);
  (s->capture != nullptr ? s->capture->nodes : s->pending).push_back(std::move(work));
  return cudaSuccess;
}

bool on_device(const void* pointer, int device) {
  const auto* found = find(pointer);
  return found != nullptr && found->second.device == device;
}

}  // namespace vca::emulated

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = state().current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return done(cudaErrorInvalidDevice);
  state().current = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= kDevices) return done(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9
           : attribute == cudaDevAttrMultiProcessorCount  ? kMultiprocessors
                                                          : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return synchronise(); }
cudaError_t cudaGetLastError() {
  const cudaError_t last = state().last;
  state().last = cudaSuccess;
  return last;
}
cudaError_t cudaPeekAtLastError() { return state().last; }
const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaErrorInvalidResourceHandle ? "cudaErrorInvalidResourceHandle"
                                                  : "an error of the emulated runtime";
}
const char* cudaGetErrorString(cudaError_t) { return "see tests/device/emulated/runtime.cpp"; }

cudaError_t cudaMalloc(void** at, size_t bytes) {
  if (capturing()) return done(cudaErrorStreamCaptureUnsupported);
  const size_t room = (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
  *at = std::aligned_alloc(256, room);
  if (*at == nullptr) return done(cudaErrorMemoryAllocation);
  std::memset(*at, 0xCB, room);
  state().memory[static_cast<const char*>(*at)] = {bytes, state().current};
  return cudaSuccess;
}
cudaError_t cudaFree(void* at) {
  if (at == nullptr) return cudaSuccess;
  run_everything();
  if (state().memory.erase(static_cast<const char*>(at)) == 0) return done(cudaErrorInvalidValue);
  std::free(at);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const cudaError_t status = synchronise();
  if (status == cudaSuccess) std::memmove(to, from, bytes);
  return status;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return vca::emulated::enqueue(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind) {
  const cudaError_t status = synchronise();
  for (size_t row = 0; row < height && status == cudaSuccess; ++row)
    std::memmove(static_cast<char*>(to) + row * to_pitch,
                 static_cast<const char*>(from) + row * from_pitch, width);
  return status;
}
cudaError_t cudaMemset(void* at, int value, size_t bytes) {
  const cudaError_t status = synchronise();
  if (status == cudaSuccess) std::memset(at, value, bytes);
  return status;
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  return vca::emulated::enqueue(stream, [=] { std::memset(at, value, bytes); });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
  *out = {};
  out->type = cudaMemoryTypeUnregistered;
  if (const auto* found = find(pointer)) {
    out->type = cudaMemoryTypeDevice;
    out->device = found->second.device;
    out->devicePointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st{state().current, {}, nullptr};
  state().streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  run(*stream);
  auto& all = state().streams;
  all.erase(std::find(all.begin(), all.end(), stream));
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (capturing()) return done(cudaErrorStreamCaptureUnsupported);
  run(*stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->capture = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = stream->capture;
  stream->capture = nullptr;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, state().mode);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  auto& pending = stream_of(stream)->pending;
  pending.insert(pending.end(), exec->nodes.begin(), exec->nodes.end());
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  run_everything();
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

}  // extern "C"
