// SPDX-License-Identifier: Apache-2.0
#include "kernels/group/launch.hpp"
#include "kernels/group/stream.cuh"

namespace vca::kernels::group {
namespace {

constexpr int kClearThreads = 256;

VCA_DEVICE void clear(UnitState* units, int64_t n) {
  for (int64_t i = int64_t{ptx::cta_index()} * kClearThreads + ptx::thread_index(); i < n;
       i += int64_t{ptx::grid_size()} * kClearThreads)
    units[i] = UnitState{};
}
__global__ void __launch_bounds__(kClearThreads)
    fill_state(StateHeader header, StateHeader* to, UnitState* units) {
  if (ptx::cta_index() == 0 && ptx::thread_index() == 0) *to = header;
  clear(units, header.units);
}
__global__ void __launch_bounds__(kClearThreads)
    clear_state(const StateHeader* header, UnitState* units, int64_t bytes) {
  if (header->magic == kStateMagic && header->bytes <= bytes) clear(units, header->units);
}

}  // namespace

cudaError_t form_order(const Request& request, const Layout& layout, const prep::Params& from,
                       void* scratch, Part part, cudaStream_t stream) {
  StreamLauncher launcher(stream);
  run_passes(request, layout, from, scratch, part, launcher);
  return launcher.status();
}

cudaError_t init_state(void* state, uint64_t state_hash, const StateLayout& layout,
                       cudaStream_t stream) {
  auto* at = static_cast<uint8_t*>(state);
  fill_state<<<32, kClearThreads, 0, stream>>>(
      {kStateMagic, state_hash, layout.n_units, layout.bytes}, reinterpret_cast<StateHeader*>(at),
      reinterpret_cast<UnitState*>(at + layout.units));
  return cudaGetLastError();
}

cudaError_t reset_state(void* state, int64_t bytes, cudaStream_t stream) {
  if (bytes < kAlign_bytes) return cudaErrorInvalidValue;
  auto* at = static_cast<uint8_t*>(state);
  clear_state<<<32, kClearThreads, 0, stream>>>(reinterpret_cast<const StateHeader*>(at),
                                                reinterpret_cast<UnitState*>(at + kAlign_bytes),
                                                bytes);
  return cudaGetLastError();
}

}  // namespace vca::kernels::group
