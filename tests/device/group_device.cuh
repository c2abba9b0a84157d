// SPDX-License-Identifier: Apache-2.0
// A grouping problem on a device: its arrays there, scratch memory, a state, and what came out.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <vector>

#include "device/group_timing.cuh"
#include "kernels/group/launch.hpp"
#include "kernels/group_problem.hpp"

namespace vca::tests {

namespace group = kernels::group;
namespace prep = kernels::prep;

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t n) : size_(n) { CHECK(cudaMalloc(&data_, n + 1)); }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_;
};

template <class T>
std::unique_ptr<DeviceBytes> to_device(const std::vector<T>& from) {
  auto out = std::make_unique<DeviceBytes>(from.size() * sizeof(T));
  CHECK(cudaMemcpy(out->data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  return out;
}
template <class T>
std::vector<T> to_host(const T* from, size_t n) {
  std::vector<T> out(n);
  CHECK(cudaMemcpy(out.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost));
  return out;
}

struct OnDevice {
  std::unique_ptr<DeviceBytes> values, valid, subs, extra, segments, n_valid, tokens, scratch,
      state, step;
  prep::Params from;
  group::Request request;
  group::Layout layout;

  OnDevice(const GroupProblem& p, bool with_state, const core::Policy& policy = {})
      : values(to_device(p.bytes)),
        valid(to_device(p.valid)),
        subs(to_device(p.subs)),
        extra(to_device(p.extra)),
        segments(to_device(p.segment_state)),
        n_valid(to_device(p.n_valid)),
        tokens(to_device(p.tokens)),
        from(p.params()),
        request(p.request()),
        layout(request, p.layout_shape()) {
    from.v.data = values->data();
    if (from.key_mask != nullptr) from.key_mask = static_cast<const uint8_t*>(valid->data());
    from.subs = static_cast<kernels::SubInfo*>(subs->data());
    from.extra = static_cast<const prep::SubExtra*>(extra->data());
    from.segment_state = static_cast<prep::SegmentState*>(segments->data());
    from.n_valid = static_cast<int32_t*>(n_valid->data());
    from.tokens = static_cast<int32_t*>(tokens->data());
    scratch = std::make_unique<DeviceBytes>(static_cast<size_t>(layout.bytes));
    CHECK(cudaMemset(scratch->data(), 0xA5, scratch->size()));
    if (!with_state) return;
    const group::StateLayout s(layout.n_units, layout.places);
    state = std::make_unique<DeviceBytes>(static_cast<size_t>(s.bytes));
    step = std::make_unique<DeviceBytes>(4);
    request.state = state->data();
    request.state_hash = 77;
    request.policy = policy;
    request.step = static_cast<const int32_t*>(step->data());
    CHECK(group::init_state(state->data(), 77, s, nullptr));
  }
  void set_step(int32_t x) { CHECK(cudaMemcpy(step->data(), &x, 4, cudaMemcpyHostToDevice)); }
  void set_values(const GroupProblem& p) {
    CHECK(cudaMemcpy(values->data(), p.bytes.data(), p.bytes.size(), cudaMemcpyHostToDevice));
  }
  void run(cudaStream_t stream = nullptr) {
    CHECK(group::form_order(request, layout, from, scratch->data(), group::Part::all, stream));
  }
  group::Params params() const {
    return group::device_params(request, layout, from, scratch->data());
  }
  std::vector<int32_t> order() const {
    return to_host(params().out_order, static_cast<size_t>(layout.places));
  }
  std::vector<group::Unit> units() const {
    return to_host(params().units, static_cast<size_t>(layout.n_units));
  }
};

}  // namespace vca::tests
