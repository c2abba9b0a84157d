// SPDX-License-Identifier: Apache-2.0
// On a GPU: the operands that preprocessing makes against the specification, byte for byte, over
// shapes, types, strides, recipes, masks, segments, orders and RoPE; twice through a captured graph
// with new data in between; inputs and the memory behind the workspace untouched. One line a case;
// exit code 1 on any difference. --time: milliseconds of a whole preparation on the Wan2.2 720p
// shape. --small: what a sanitizer gets through, within VCA_TEST_SECONDS where that is set.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device/memory.hpp"
#include "kernels/prep/launch.hpp"
#include "kernels/prep_compare.hpp"

namespace {

using namespace vca;
using namespace vca::kernels;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("CUDA: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t n) {
    check(cudaMalloc(&data_, std::max<size_t>(n, 1)), "cudaMalloc");
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }

 private:
  void* data_ = nullptr;
};

template <class T>
std::unique_ptr<DeviceBytes> to_device(const std::vector<T>& from) {
  auto out = std::make_unique<DeviceBytes>(from.size() * sizeof(T));
  if (!from.empty())
    check(cudaMemcpy(out->data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
          "copy in");
  return out;
}

// A tensor's bytes. Small storages whole; large ones head by head, since most of them is not there.
using Copy = void (*)(uint8_t* device, uint8_t* host, size_t n);
void for_each_piece(const spec::TensorView& t, const tests::LazyBytes& storage, uint8_t* device,
                    uint8_t* host, Copy copy) {
  if (storage.size() < (size_t{1} << 28)) return copy(device, host, storage.size());
  const int64_t element = spec::dtype_bytes(t.dtype);
  const int64_t first = static_cast<const uint8_t*>(t.data) - storage.data();
  for (int64_t b = 0; b < t.shape[0]; ++b)
    for (int64_t h = 0; h < t.shape[1]; ++h) {
      const int64_t at = first + (b * t.stride[0] + h * t.stride[1]) * element;
      const int64_t n = ((t.shape[2] - 1) * t.stride[2] + t.shape[3]) * element;
      copy(device + at, host + at, static_cast<size_t>(n));
    }
}
void copy_in(uint8_t* device, uint8_t* host, size_t n) {
  check(cudaMemcpy(device, host, n, cudaMemcpyHostToDevice), "copy in");
}
bool inputs_changed = false;
void compare_back(uint8_t* device, uint8_t* host, size_t n) {
  std::vector<uint8_t> now(n);
  check(cudaMemcpy(now.data(), device, n, cudaMemcpyDeviceToHost), "copy out");
  if (std::memcmp(now.data(), host, n) != 0) inputs_changed = true;
}

// A problem's inputs on the device, and the request that points there.
struct OnDevice {
  std::unique_ptr<DeviceBytes> storage[3], lens, mask, order, cos, sin, energy;
  spec::Rope rope;
  prep::PrepParams request;

  explicit OnDevice(tests::PrepProblem& host) : request(host.request) {
    spec::TensorView* views[3] = {&request.q, &request.k, &request.v};
    for (int i = 0; i < 3; ++i) {
      const tests::LazyBytes& from = storage_of(host, i);
      if (host.storage[i] != nullptr) storage[i] = std::make_unique<DeviceBytes>(from.size());
      uint8_t* base = (storage[i] != nullptr ? storage[i] : storage[0])->data();
      const auto at = static_cast<const uint8_t*>(views[i]->data) - from.data();
      views[i]->data = base + at;
    }
    upload(host);
    lens = to_device(host.kv_lens);
    mask = to_device(host.key_mask);
    order = to_device(host.order);
    cos = to_device(host.cos);
    sin = to_device(host.sin);
    if (request.kv_lens != nullptr) request.kv_lens = reinterpret_cast<int32_t*>(lens->data());
    if (request.key_mask != nullptr) request.key_mask = mask->data();
    if (request.order != nullptr) request.order = reinterpret_cast<int32_t*>(order->data());
    if (request.rope != nullptr) {
      rope = *request.rope;
      if (rope.cos != nullptr) {
        rope.cos = reinterpret_cast<float*>(cos->data());
        rope.sin = reinterpret_cast<float*>(sin->data());
      }
      request.rope = &rope;
    }
    energy = std::make_unique<DeviceBytes>(energy_count(host) * 4);
    request.energy_removed = reinterpret_cast<float*>(energy->data());
  }

  static size_t energy_count(const tests::PrepProblem& host) {
    return host.problem.subs.size() * static_cast<size_t>(host.shape.h_kv);
  }
  static const tests::LazyBytes& storage_of(const tests::PrepProblem& host, int i) {
    return *(host.storage[i] != nullptr ? host.storage[i] : host.storage[0]);
  }
  void pieces(const tests::PrepProblem& host, Copy copy) const {
    const spec::TensorView* views[3] = {&host.problem.q, &host.problem.k, &host.problem.v};
    for (int i = 0; i < 3; ++i)
      if (storage[i] != nullptr)
        for_each_piece(*views[i], *host.storage[i], storage[i]->data(), host.storage[i]->data(),
                       copy);
  }
  void upload(const tests::PrepProblem& host) const { pieces(host, copy_in); }
};

std::string compare(const tests::PrepProblem& host, const OnDevice& device,
                    const prep::Layout& layout, const DeviceBytes& workspace, size_t guard) {
  const auto bytes = static_cast<size_t>(layout.bytes);
  tests::AlignedBytes back;
  back.resize(bytes + guard);
  check(cudaMemcpy(back.data, workspace.data(), bytes + guard, cudaMemcpyDeviceToHost), "copy out");
  for (size_t i = 0; i < guard; ++i)
    if (back.data[bytes + i] != 0xA5) return "wrote behind the workspace";
  std::vector<float> energy(OnDevice::energy_count(host));
  if (!energy.empty())
    check(
        cudaMemcpy(energy.data(), device.energy->data(), energy.size() * 4, cudaMemcpyDeviceToHost),
        "copy out");
  inputs_changed = false;
  device.pieces(host, compare_back);
  if (inputs_changed) return "an input was written";
  const AttentionParams got = prep::attention_params(host.request, back.data);
  return tests::PrepComparison(
             host, got, reinterpret_cast<const float*>(back.data + layout.k_offset), energy.data())
      .run();
}

// The layout must be that of the device's request, which asks for the removed energy.
void ask_for_energy(tests::PrepProblem& host) {
  host.request.energy_removed = reinterpret_cast<float*>(uintptr_t{16});
}

bool run_case(const tests::PrepCase& shape) {
  constexpr size_t kGuard = 4096;
  tests::PrepProblem host(shape);
  const OnDevice device(host);
  ask_for_energy(host);
  const prep::Layout layout(device.request);
  const DeviceBytes workspace(static_cast<size_t>(layout.bytes) + kGuard);
  // What nobody initialised stays so for initcheck, which a fill would blind; the guard is filled.
  const size_t unfilled = tests::leave_uninitialised() ? static_cast<size_t>(layout.bytes) : 0;
  check(cudaMemset(workspace.data() + unfilled, 0xA5,
                   static_cast<size_t>(layout.bytes) + kGuard - unfilled),
        "poison");
  check(prep::prepare(device.request, workspace.data(), nullptr), "prepare");
  check(cudaDeviceSynchronize(), "kernels");
  const std::string bad = compare(host, device, layout, workspace, kGuard);
  std::printf("%s: %s\n", tests::describe(shape).c_str(), bad.empty() ? "equal" : bad.c_str());
  std::fflush(stdout);
  return bad.empty();
}

// One captured graph, replayed on two data sets of the same shape: nothing of the first may remain,
// and nothing in the graph may point to host memory that is gone.
bool run_graph() {
  tests::PrepCase shape = {.name = "graph",
                           .b = 2,
                           .h_q = 2,
                           .h_kv = 1,
                           .s_q = 300,
                           .s_kv = 700,
                           .layout = tests::Layout::with_text_and_padding,
                           .rope = tests::RopeKind::interleaved,
                           .mask = true};
  tests::PrepProblem first(shape);
  shape.magnitude = 3.0;
  tests::PrepProblem second(shape);
  const OnDevice device(first);
  ask_for_energy(first);
  ask_for_energy(second);
  const prep::Layout layout(device.request);
  const DeviceBytes workspace(static_cast<size_t>(layout.bytes));
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  check(prep::prepare(device.request, workspace.data(), stream), "prepare");
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  bool ok = true;
  for (tests::PrepProblem* host : {&first, &second, &first}) {
    device.upload(*host);
    check(cudaDeviceSynchronize(), "upload");
    check(cudaGraphLaunch(exec, stream), "graph");
    check(cudaStreamSynchronize(stream), "graph");
    const std::string bad = compare(*host, device, layout, workspace, 0);
    std::printf("graph replay: %s\n", bad.empty() ? "equal" : bad.c_str());
    ok = ok && bad.empty();
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return ok;
}

bool run_zero_rows() {
  bool ok = true;
  for (const OutType type : {OutType::bf16, OutType::fp16, OutType::fp32}) {
    constexpr int64_t kRowsAll = 360, kPitch = 9, kHeads = 2;
    const size_t bytes = type == OutType::fp32 ? 4 : 2;
    std::vector<SubInfo> subs(2);
    subs[0].q_len = 200;
    subs[0].n_blocks = 3;
    subs[1].q_begin = 200;
    subs[1].q_len = 140;
    for (SubInfo& sub : subs) sub.n_q_tiles = 2;
    std::vector<uint8_t> o(kHeads * kRowsAll * kPitch * bytes, 0x5A);
    std::vector<float> lse(kHeads * kRowsAll, 3.0f);
    const auto d_subs = to_device(subs), d_o = to_device(o), d_lse = to_device(lse);
    AttentionParams p{};
    p.subs = reinterpret_cast<SubInfo*>(d_subs->data());
    p.o = d_o->data();
    p.o_stride_h = kRowsAll * kPitch;
    p.o_stride_s = kPitch;
    p.lse = reinterpret_cast<float*>(d_lse->data());
    p.lse_s = kRowsAll;
    p.n_subs = p.h_q = p.max_q_tiles = 2;
    p.h_kv = 1;
    p.head_dim = 7;
    p.o_type = type;
    check(prep::zero_rows(p, nullptr), "zero_rows");
    check(cudaMemcpy(o.data(), d_o->data(), o.size(), cudaMemcpyDeviceToHost), "copy out");
    check(cudaMemcpy(lse.data(), d_lse->data(), lse.size() * 4, cudaMemcpyDeviceToHost),
          "copy out");
    int64_t wrong = 0;
    for (int64_t row = 0; row < kHeads * kRowsAll; ++row) {
      const int64_t s = row % kRowsAll;
      const bool empty = s >= 200 && s < 340;
      if (lse[static_cast<size_t>(row)] != (empty ? -INFINITY : 3.0f)) ++wrong;
      for (int64_t i = 0; i < kPitch * static_cast<int64_t>(bytes); ++i) {
        const bool zero = empty && i < 7 * static_cast<int64_t>(bytes);
        const auto at = static_cast<size_t>(row * kPitch) * bytes + static_cast<size_t>(i);
        if (o[at] != (zero ? 0 : 0x5A)) ++wrong;
      }
    }
    std::printf("zero rows, output type %d: %lld wrong\n", static_cast<int>(type),
                static_cast<long long>(wrong));
    ok = ok && wrong == 0;
  }
  return ok;
}

void time_wan() {
  const int64_t h = 40, s = 75600, d = 128;
  const size_t bytes = static_cast<size_t>(h * s * d) * 2;
  const DeviceBytes q(bytes), k(bytes), v(bytes);
  std::vector<uint16_t> noise(static_cast<size_t>(s * d));  // every head the same: time only
  tests::Random rng(1);
  for (uint16_t& x : noise) x = spec::bf16_encode(static_cast<float>(rng.uniform() * 4.0 - 2.0));
  prep::PrepParams r;
  const DeviceBytes* from[3] = {&q, &k, &v};
  spec::TensorView* views[3] = {&r.q, &r.k, &r.v};
  for (int i = 0; i < 3; ++i) {
    for (int64_t head = 0; head < h; ++head)
      check(cudaMemcpy(from[i]->data() + head * s * d * 2, noise.data(), noise.size() * 2,
                       cudaMemcpyHostToDevice),
            "copy in");
    views[i]->data = from[i]->data();
    views[i]->shape = {1, h, s, d};
    views[i]->stride = {h * s * d, s * d, d, 1};
  }
  r.scale = 1.0 / std::sqrt(128.0);
  r.recipe = spec::find_recipe("vc8");
  r.segments = {{0, s}};
  r.subs = {{0, 0, s, 0, 1}};
  const DeviceBytes workspace(static_cast<size_t>(prep::workspace_bytes(r)));
  cudaEvent_t start = nullptr, stop = nullptr;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&stop), "event");
  for (int i = 0; i < 3; ++i) check(prep::prepare(r, workspace.data(), nullptr), "prepare");
  constexpr int kRuns = 10;
  check(cudaEventRecord(start), "event");
  for (int i = 0; i < kRuns; ++i) check(prep::prepare(r, workspace.data(), nullptr), "prepare");
  check(cudaEventRecord(stop), "event");
  check(cudaEventSynchronize(stop), "kernels");
  float ms = 0.0f;
  check(cudaEventElapsedTime(&ms, start, stop), "event");
  std::printf("prepare, B1 H40 N75600 d128 BF16, identity order: %.3f ms, workspace %.2f GiB\n",
              static_cast<double>(ms) / kRuns,
              static_cast<double>(prep::workspace_bytes(r)) / (1 << 30));
}

// A sanitizer slows every access down: cases of at most 2^18 elements, as many as there is time
// for.
bool run_small() {
  const auto begin = std::chrono::steady_clock::now();
  const char* limit = std::getenv("VCA_TEST_SECONDS");
  bool ok = run_graph() && run_zero_rows();
  int left_out = 0;
  for (const tests::PrepCase& c : tests::prep_cases()) {
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - begin;
    const int64_t elements = c.b * c.d * (c.h_q * c.s_q + 2 * c.h_kv * c.s_kv);
    if (elements > 1 << 18 || c.memory == tests::Memory::far_apart ||
        (limit != nullptr && gone.count() > std::atof(limit)))
      ++left_out;
    else
      ok = run_case(c) && ok;
  }
  std::printf("note: %d cases left out\n", left_out);
  return ok;
}

bool run_all() {
  bool ok = true;
  for (const tests::PrepCase& c : tests::prep_cases()) ok = run_case(c) && ok;
  // More heads than a grid's y or z may have.
  ok = run_case({.name = "66,000 heads",
                 .b = 300,
                 .h_q = 220,
                 .h_kv = 220,
                 .s_q = 3,
                 .s_kv = 5,
                 .d = 16,
                 .shuffled = true}) &&
       ok;
  ok = run_graph() && ok;
  return run_zero_rows() && ok;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  bool ok = true;
  if (what != "--time") {
    ok = what == "--small" ? run_small() : run_all();
    std::printf(ok ? "all equal\n" : "differences\n");
  }
  if (what != "--small") time_wan();
  return ok ? 0 : 1;
}
