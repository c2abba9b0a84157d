// SPDX-License-Identifier: Apache-2.0
// The launchers of src/kernels on the emulated device: the preprocessing passes as loops over
// blocks and threads, the sources of grouping and attention on the emulator (docs/emulator.md).
#include "emu/launch.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "device/emulated/runtime.hpp"
#include "kernels/group/launch.hpp"
#include "kernels/group_emulator.hpp"
#include "kernels/prep/launch.hpp"
#include "kernels/prep/pipeline.hpp"
#include "kernels/sm90/kernel.cuh"
#include "kernels/sm90/launch.hpp"

namespace vca::kernels {
namespace group {

cudaError_t form_order(const Request& request, const Layout& layout, const prep::Params& from,
                       void* scratch, Part part, cudaStream_t stream) {
  return emulated::enqueue(stream, [=] {
    tests::GroupEmulator launcher;
    run_passes(request, layout, from, scratch, part, launcher);
  });
}

cudaError_t init_state(void* state, uint64_t state_hash, const StateLayout& layout,
                       cudaStream_t stream) {
  return emulated::enqueue(stream, [=] {
    auto* at = static_cast<uint8_t*>(state);
    const StateHeader header{kStateMagic, state_hash, layout.n_units, layout.bytes};
    std::memcpy(at, &header, sizeof header);
    std::fill_n(reinterpret_cast<UnitState*>(at + layout.units), layout.n_units, UnitState{});
  });
}

cudaError_t reset_state(void* state, int64_t bytes, cudaStream_t stream) {
  if (bytes < kAlign_bytes) return cudaErrorInvalidValue;
  return emulated::enqueue(stream, [=] {
    auto* at = static_cast<uint8_t*>(state);
    StateHeader header;
    std::memcpy(&header, at, sizeof header);
    if (header.magic != kStateMagic || header.bytes > bytes) return;
    std::fill_n(reinterpret_cast<UnitState*>(at + kAlign_bytes), header.units, UnitState{});
  });
}

}  // namespace group

namespace prep {
namespace {

class EmulatedLauncher {
 public:
  explicit EmulatedLauncher(cudaStream_t stream) : stream_(stream) {}
  cudaError_t status() const { return status_; }

  void upload(void* to, const std::vector<uint8_t>& bytes) {
    put([to, bytes] {
      if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    });
  }
  template <class Kernel>
  void launch(const typename Kernel::Params& params, int64_t blocks) {
    put([params, blocks] {
      if constexpr (requires { Kernel::kSharedBytes; }) {
        emu::LaunchConfig config;
        config.grid = static_cast<uint32_t>(blocks);
        config.threads = Kernel::kThreads;
        config.smem_bytes = Kernel::kSharedBytes;
        if (blocks > 0) emu::launch(config, [&params] { Kernel::run(params, ptx::cta_index()); });
        return;
      } else {
        run_phases<Kernel>(params, blocks);
      }
    });
  }

  void form_order(const group::Request& request, const group::Layout& layout, const Params& from,
                  void* scratch, group::Part part) {
    if (status_ == cudaSuccess)
      status_ = group::form_order(request, layout, from, scratch, part, stream_);
  }

 private:
  template <class Kernel>
  static void run_phases(const typename Kernel::Params& params, int64_t blocks) {
    auto shared = std::make_unique<typename Kernel::Shared>();
    std::memset(static_cast<void*>(shared.get()), 0xA5, sizeof(typename Kernel::Shared));
    for (int64_t block = blocks; block-- > 0;)
      for (int phase = 0; phase < Kernel::kPhases; ++phase)
        for (int thread = Kernel::kThreads; thread-- > 0;)
          Kernel::phase(phase, params, *shared, block, thread);
  }

  void put(std::function<void()> work) {
    if (status_ == cudaSuccess) status_ = emulated::enqueue(stream_, std::move(work));
  }
  cudaStream_t stream_;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace

cudaError_t prepare(const PrepParams& request, void* workspace, cudaStream_t stream) {
  if (request.recipe == nullptr || !supports(*request.recipe)) return cudaErrorNotSupported;
  if (!in_contract(request, workspace)) return cudaErrorInvalidValue;
  EmulatedLauncher launcher(stream);
  run_passes(request, workspace, launcher);
  return launcher.status();
}

cudaError_t zero_rows(const AttentionParams& params, cudaStream_t stream) {
  EmulatedLauncher launcher(stream);
  launcher.launch<ZeroRows>(params, int64_t{params.n_subs} * params.h_q * params.max_q_tiles);
  return launcher.status();
}

}  // namespace prep

namespace sm90 {
namespace {

template <Config C>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  emu::LaunchConfig config;
  config.grid = TileScheduler<C.cluster>::grid(params, multiprocessors);
  if (config.grid == 0) return cudaSuccess;
  config.cluster = C.cluster;
  config.threads = Config::kThreads;
  config.smem_bytes = C.smem_bytes();
  return emulated::enqueue(stream, [params, config, device] {
    if (!emulated::on_device(params.q_tiles, device) || !emulated::on_device(params.o, device))
      throw emu::Fault("a kernel on another device than its memory");
    emu::launch(config, [&params] { attention_body<C>(params); });
  });
}

}  // namespace

cudaError_t launch_attention(const spec::Recipe& recipe, int d_pad, const AttentionParams& params,
                             cudaStream_t stream) {
  Form form;
  if (!find_form(recipe, form)) return cudaErrorNotSupported;
  return with_config(form, d_pad, [&]<Config C>() { return launch<C>(params, stream); });
}

}  // namespace sm90
}  // namespace vca::kernels
