// SPDX-License-Identifier: Apache-2.0
#include "kernels/group/launch.hpp"
#include "kernels/group/stream.cuh"

namespace vca::kernels::group {
namespace {

__global__ void __launch_bounds__(256)
    fill_state(StateHeader header, StateHeader* to, UnitState* units) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i == 0) *to = header;
  if (i < header.units) {
    UnitState s{};
    s.last_call_step = -1;
    s.step = -1;
    units[i] = s;
  }
}

}  // namespace

cudaError_t form_order(const Request& request, const Layout& layout, const prep::Params& from,
                       void* scratch, cudaStream_t stream) {
  StreamLauncher launcher(stream);
  run_passes(request, layout, from, scratch, launcher);
  return launcher.status();
}

cudaError_t init_state(void* state, uint64_t state_hash, int64_t n_units, int64_t places,
                       cudaStream_t stream) {
  const StateLayout layout(n_units, places);
  auto* at = static_cast<uint8_t*>(state);
  const auto blocks = static_cast<unsigned>(ceil_div(n_units, 256) + 1);
  fill_state<<<blocks, 256, 0, stream>>>({kStateMagic, state_hash, n_units, layout.bytes},
                                         reinterpret_cast<StateHeader*>(at),
                                         reinterpret_cast<UnitState*>(at + layout.units));
  return cudaGetLastError();
}

}  // namespace vca::kernels::group
