// SPDX-License-Identifier: Apache-2.0
// On a GPU: the time of every preprocessing pass with the bytes it must move, the floor these bytes
// set at the board's measured copy rate, and their ratio; then of the whole chain, launched and as
// a graph. Wan2.2 720p: B1 H40 N75,600 d128, BF16. Results are not checked here (prep_test does).
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "device/video_values.hpp"
#include "kernels/prep/launch.hpp"
#include "kernels/prep/pipeline.hpp"
#include "kernels/prep/row_kernels.cuh"

namespace {

using namespace vca;
using namespace vca::kernels;
using prep::Source;

constexpr int64_t kHeads = 40, kTokens = 75600, kDim = 128, kBlocks = 591, kGroups = 74;
constexpr double kCopyRate = 4.19e12;  // bytes a second, H200
constexpr int kRuns = 20;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("CUDA: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}

__global__ void fill_noise(uint32_t* to, int64_t words, uint32_t seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u ^ seed;
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    // Two BF16 in ±[0.5, 2): random sign, one exponent bit, mantissa.
    to[i] = 0x3F003F00u ^ (x & 0x80FF80FFu);
  }
}

struct Buffer {
  explicit Buffer(int64_t bytes) { check(cudaMalloc(&data, static_cast<size_t>(bytes)), "malloc"); }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data = nullptr;
};

class Timer {
 public:
  Timer() {
    check(cudaEventCreate(&start_), "event");
    check(cudaEventCreate(&stop_), "event");
  }
  ~Timer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  template <class Work>
  double microseconds(cudaStream_t stream, const Work& work) {
    for (int i = 0; i < 3; ++i) work();
    check(cudaEventRecord(start_, stream), "event");
    for (int i = 0; i < kRuns; ++i) work();
    check(cudaEventRecord(stop_, stream), "event");
    check(cudaEventSynchronize(stop_), "kernels");
    float ms = 0.0f;
    check(cudaEventElapsedTime(&ms, start_, stop_), "event");
    return static_cast<double>(ms) * 1000.0 / kRuns;
  }

 private:
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

// Name of a kernel's type, without its namespace.
template <class Kernel>
std::string name_of() {
  std::string_view text = __PRETTY_FUNCTION__;
  text.remove_prefix(text.find("Kernel = ") + 9);
  text = text.substr(0, text.find_first_of(";]<"));
  text.remove_prefix(text.rfind(':') + 1);
  return std::string(text);
}

// Bytes that a pass has to move; 0: bookkeeping.
double bytes_of(std::string_view pass, bool ordered, bool lse) {
  const double tensor = double{kHeads} * kTokens * kDim * 2, tiles = double{kHeads} * kBlocks;
  const double tokens = ordered ? double{kHeads} * kTokens * 4 : kTokens * 4.0;
  if (pass.starts_with("KeyOffsetPartial")) return tensor / 16 + kHeads * kGroups * 512.0;
  if (pass.starts_with("KeyTiles")) return tensor + tiles * 16384 + tokens;
  if (pass.starts_with("ValueRange")) return tensor + kHeads * kGroups * 1024.0;
  if (pass.starts_with("ValueTiles"))
    return tensor + tiles * 17408 + kHeads * kGroups * 4096.0 + tokens;
  if (pass.starts_with("QueryTiles")) return tensor + tiles * (16384 + 256 + (lse ? 512 : 0));
  if (pass.starts_with("QueryUnits")) return tiles * 3 * 256;
  return 0.0;
}

struct Config {
  const char* name;
  bool nhd = false, fused = false, ordered = false, rope = false, hadamard = false, lse = false;
};

template <class Kernel>
inline constexpr bool kTimed = true;  // BF16 and head_dim 128 only: what this program compiles
template <template <Source, int> class Kernel, Source kSource, int kDPad>
inline constexpr bool kTimed<Kernel<kSource, kDPad>> = kSource == Source::bf16&& kDPad == 128;

// Runs each pass many times where the pipeline would run it once.
class PassTimer {
 public:
  explicit PassTimer(const Config& config) : config_(config), launcher_(nullptr) {}
  void upload(void* to, const std::vector<uint8_t>& bytes) {
    report("upload", timer_.microseconds(nullptr, [&] { launcher_.upload(to, bytes); }));
  }
  template <class Kernel>
  void launch(const typename Kernel::Params& p, int64_t blocks) {
    if constexpr (kTimed<Kernel>) {
      time<Kernel>(name_of<Kernel>(), p, blocks);
      variants<Kernel>(p, blocks);
    }
  }
  void form_order(const group::Request& request, const group::Layout& layout,
                  const prep::Params& from, void* scratch, group::Part part) {
    report(part == group::Part::scales ? "token scales" : "order",
           timer_.microseconds(
               nullptr, [&] { launcher_.form_order(request, layout, from, scratch, part); }));
  }
  double sum() const { return sum_; }

 private:
  template <class Kernel>
  void time(const std::string& name, const typename Kernel::Params& p, int64_t blocks,
            bool counts = true) {
    const double us = timer_.microseconds(nullptr, [&] { launcher_.launch<Kernel>(p, blocks); });
    check(launcher_.status(), "launch");
    report(name, us, counts);
  }
  template <class Kernel>
  void variants(const typename Kernel::Params& p, int64_t blocks) {
    const std::string name = name_of<Kernel>();
    if (std::getenv("VCA_PREP_VARIANTS") == nullptr) return;
    // Others that the registers allow: batch and CTAs, and rows a thread for keys.
    if constexpr (requires { Kernel::kTurnOf; }) {
      constexpr prep::Turn kTurn = Kernel::kTurnOf;
      if (name == "QueryTiles") {
        time<prep::QueryTilesTuned<Source::bf16, 128, kTurn, 4, 2>>(name + " 4/2", p, blocks,
                                                                    false);
      } else if (name == "KeyTiles") {
        time<prep::KeyTilesTuned<Source::bf16, 128, kTurn, 8, 4, 2>>(name + " 8/4/2", p, blocks,
                                                                     false);
      }
    } else if (name == "ValueTiles") {
      time<prep::ValueTilesTuned<Source::bf16, 128, 3>>(name + " 3", p, blocks, false);
    }
  }
  void report(const std::string& name, double us, bool counts = true) {
    const double bytes = bytes_of(name, config_.ordered, config_.lse);
    const double floor = bytes / kCopyRate * 1e6;
    if (counts) sum_ += us;
    std::printf("%-22s %-20s %8.1f MB  floor %7.1f us  took %8.1f us  %5.2f\n", config_.name,
                name.c_str(), bytes / 1e6, floor, us, floor > 0.0 ? us / floor : 0.0);
  }
  const Config& config_;
  prep::StreamLauncher launcher_;
  Timer timer_;
  double sum_ = 0.0;
};

std::vector<int32_t> shuffled_order() {
  std::vector<int32_t> order(static_cast<size_t>(kHeads * kBlocks * 128), -1);
  uint64_t state = 1;
  for (int64_t h = 0; h < kHeads; ++h) {
    int32_t* at = order.data() + h * kBlocks * 128;
    std::iota(at, at + kTokens, 0);
    for (int64_t n = kTokens; n > 1; --n) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(at[n - 1], at[(state >> 33) % static_cast<uint64_t>(n)]);
    }
  }
  return order;
}

void run_config(const Config& c, const Buffer& inputs, const Buffer& order) {
  prep::PrepParams r;
  spec::TensorView* views[3] = {&r.q, &r.k, &r.v};
  for (int64_t i = 0; i < 3; ++i) {
    auto* base = static_cast<uint16_t*>(inputs.data);
    views[i]->shape = {1, kHeads, kTokens, kDim};
    if (c.fused) {  // a row of 3 · 56 heads
      views[i]->data = base + i * 56 * kDim;
      views[i]->stride = {kTokens * 21504, kDim, 21504, 1};
    } else if (c.nhd) {
      views[i]->data = base + i * kHeads * kTokens * kDim;
      views[i]->stride = {kTokens * kHeads * kDim, kDim, kHeads * kDim, 1};
    } else {
      views[i]->data = base + i * kHeads * kTokens * kDim;
      views[i]->stride = {kTokens * kHeads * kDim, kTokens * kDim, kDim, 1};
    }
  }
  const spec::Rope rope =
      spec::make_rope(spec::RopeConvention::interleaved, {44, 42, 42}, 10000.0, {21, 45, 80}, 0);
  r.scale = 1.0 / std::sqrt(128.0);
  r.recipe = spec::find_recipe("vc8");
  r.hadamard = c.hadamard;
  r.rope = c.rope ? &rope : nullptr;
  r.segments = {{0, kTokens}};
  r.subs = {{0, 0, kTokens, 0, 1}};
  r.order = c.ordered ? static_cast<const int32_t*>(order.data) : nullptr;
  r.lse = c.lse;
  const Buffer workspace(prep::workspace_bytes(r));

  PassTimer passes(c);
  prep::run_passes(r, workspace.data, passes);
  Timer timer;
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const auto prepare = [&] { check(prep::prepare(r, workspace.data, stream), "prepare"); };
  const double launched = timer.microseconds(stream, prepare);
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  prepare();
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  const double replayed =
      timer.microseconds(stream, [&] { check(cudaGraphLaunch(exec, stream), "graph"); });
  double bytes = 0.0;
  for (const char* pass :
       {"KeyOffsetPartial", "KeyTiles", "ValueRange", "ValueTiles", "QueryTiles"})
    bytes += bytes_of(pass, c.ordered, c.lse);
  const double floor = bytes / kCopyRate * 1e6;
  std::printf(
      "%-22s chain: %.2f GB, floor %.0f us; passes %.0f us, launched %.0f us (%.2f x floor), graph "
      "%.0f us\n",
      c.name, bytes / 1e9, floor, passes.sum(), launched, launched / floor, replayed);
  std::fflush(stdout);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// The whole chain with a grouping, as a graph: without a state (every call groups anew), and with
// one at the first step of a run (each time with an empty state), the second, and past the window.
void run_grouping(spec::Grouping kind, const Buffer& inputs) {
  prep::PrepParams r;
  spec::TensorView* views[3] = {&r.q, &r.k, &r.v};
  for (int64_t i = 0; i < 3; ++i) {
    views[i]->shape = {1, kHeads, kTokens, kDim};
    views[i]->data = static_cast<uint16_t*>(inputs.data) + i * kHeads * kTokens * kDim;
    views[i]->stride = {kTokens * kHeads * kDim, kTokens * kDim, kDim, 1};
  }
  r.scale = 1.0 / std::sqrt(128.0);
  r.recipe = spec::find_recipe("vc8");
  r.segments = {{0, kTokens}};
  r.subs = {{0, 0, kTokens, 0, 1}};
  r.grouping.kind = kind;
  r.grouping.grid = {21, 45, 80};
  r.grouping.video = {true};
  const Buffer step(4);
  const group::StateLayout state_layout(kHeads, kHeads * kBlocks * 128);
  const Buffer state(state_layout.bytes);
  check(group::init_state(state.data, 5, state_layout, nullptr), "state");
  for (const bool with_state : {false, true}) {
    r.grouping.state = with_state ? state.data : nullptr;
    r.grouping.state_hash = 5;
    r.grouping.policy.steps = 40;
    r.grouping.policy.window = 10;
    r.grouping.step = static_cast<const int32_t*>(step.data);
    const Buffer workspace(prep::workspace_bytes(r));
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    check(prep::prepare(r, workspace.data, stream), "prepare");
    check(cudaStreamEndCapture(stream, &graph), "end of capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    Timer timer;
    for (const int32_t at : {0, 1, 20}) {
      if (!with_state && at > 0) continue;
      check(cudaMemcpy(step.data, &at, 4, cudaMemcpyHostToDevice), "step");
      const bool empty = with_state && at == 0;
      const double us = timer.microseconds(stream, [&] {
        if (empty) check(group::reset_state(state.data, state_layout.bytes, stream), "reset");
        check(cudaGraphLaunch(exec, stream), "graph");
      });
      std::printf("grouping %-8s %-5s chain in a graph %.0f us\n", spec::to_string(kind),
                  !with_state ? "alone"
                  : at == 0   ? "first"
                  : at == 1   ? "warm"
                              : "keep",
                  us);
    }
    std::fflush(stdout);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

}  // namespace

// `--grouping`: only what grouping adds to the chain.
int main(int argc, char** argv) {
  const bool grouping_only = argc > 1 && std::strcmp(argv[1], "--grouping") == 0;
  const int64_t bytes = kTokens * 21504 * 2;  // the fused form is the largest
  const Buffer inputs(bytes);
  fill_noise<<<1024, 256>>>(static_cast<uint32_t*>(inputs.data), bytes / 4, 7);
  check(cudaGetLastError(), "noise");
  const std::vector<int32_t> host_order = shuffled_order();
  const Buffer order(static_cast<int64_t>(host_order.size()) * 4);
  check(cudaMemcpy(order.data, host_order.data(), host_order.size() * 4, cudaMemcpyHostToDevice),
        "copy in");
  check(cudaDeviceSynchronize(), "inputs");
  std::vector<Config> configs = {
      Config{.name = "hnd"},
      Config{.name = "nhd", .nhd = true},
      Config{.name = "fused", .fused = true},
      Config{.name = "hnd rope", .rope = true},
      Config{.name = "hnd hadamard", .hadamard = true},
      Config{.name = "hnd order", .ordered = true},
      Config{.name = "nhd order rope", .nhd = true, .ordered = true, .rope = true},
      Config{.name = "fused order rope lse",
             .fused = true,
             .ordered = true,
             .rope = true,
             .lse = true},
      Config{.name = "nhd rope hadamard lse",
             .nhd = true,
             .rope = true,
             .hadamard = true,
             .lse = true}};
  if (grouping_only) configs.resize(1);
  for (const Config& c : configs) run_config(c, inputs, order);
  const std::vector<uint16_t> values = tests::video_values(kHeads, 3);
  check(cudaMemcpy(static_cast<uint16_t*>(inputs.data) + 2 * kHeads * kTokens * kDim, values.data(),
                   values.size() * 2, cudaMemcpyHostToDevice),
        "values");
  for (const auto kind : {spec::Grouping::identity, spec::Grouping::vsmooth, spec::Grouping::cubes,
                          spec::Grouping::kmeans}) {
    run_grouping(kind, inputs);
    if (grouping_only && kind == spec::Grouping::vsmooth) break;
  }
  return 0;
}
