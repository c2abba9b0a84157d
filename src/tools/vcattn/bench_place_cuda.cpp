// SPDX-License-Identifier: Apache-2.0
// A CUDA device: one stream of its own, calls timed by pairs of events, all of them queued before
// the first is waited for, so that the device never idles between calls that are longer than their
// launch.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/vcattn/bench_nvml.hpp"
#include "tools/vcattn/bench_place.hpp"
#include "tools/vcattn/errors.hpp"

namespace vca::tools {
namespace {

// Events in flight; a stream's queue holds about a thousand entries before it blocks.
constexpr int kBatch = 256;

std::string text_of(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status);
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw UserError(std::string("CUDA: ") + what + " failed", text_of(status), "",
                  "is the device free and healthy (nvidia-smi)?");
}

std::string bus_id_of(int ordinal) {
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), ordinal),
        "cudaDeviceGetPCIBusId");
  return text.data();
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaPlace : public Place {
 public:
  explicit CudaPlace(int ordinal) : ordinal_(ordinal), nvml_(bus_id_of(ordinal)) {
    check(cudaSetDevice(ordinal), "cudaSetDevice");
    check(cudaGetDeviceProperties(&properties_, ordinal), "cudaGetDeviceProperties");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~CudaPlace() override { cudaStreamDestroy(stream_); }

  int32_t device() const override { return ordinal_; }
  std::string name() const override { return properties_.name; }
  std::string driver() const override {
    std::string version = nvml_.driver();
    return version.empty() ? "unknown" : version;
  }
  std::string clock_source() const override {
    return nvml_.refusal().empty() ? "NVML" : nvml_.refusal();
  }

  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, std::max<size_t>(bytes, 1));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw UserError("the device has not enough memory", std::to_string(bytes) + " bytes wanted",
                      "", "a smaller problem, or a device that nothing else uses");
    }
    check(status, "cudaMalloc");
    return memory;
  }
  void release(void* memory) noexcept override { cudaFree(memory); }
  void upload(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "copy to the device");
    check(cudaStreamSynchronize(stream_), "copy to the device");
  }
  void download(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "copy to the host");
    check(cudaStreamSynchronize(stream_), "work on the device");
  }
  void run(const std::function<void(void*)>& call) override {
    call(stream_);
    check(cudaStreamSynchronize(stream_), "work on the device");
  }

  Timing time(const TimingOptions& options, const std::function<void(void*)>& call,
              const std::function<void()>& tick) override {
    std::vector<double> warm;
    batch(std::max(options.warmup, 1), call, tick, warm);
    // The first call may load code.
    const double each = std::max(*std::min_element(warm.begin(), warm.end()), 1e-4);
    const double wanted = std::ceil(1e3 * options.seconds / each);
    int left =
        std::max(options.iterations, static_cast<int>(std::min<double>(wanted, kMaxIterations)));
    NvmlSampler sampler(nvml_);
    Timing timing;
    for (; left > 0; left -= kBatch) batch(std::min(left, kBatch), call, tick, timing.ms);
    const Nvml::Reading mean = sampler.stop();
    timing.clock_mhz = mean.clock_mhz;
    timing.power_w = mean.power_w;
    return timing;
  }

 private:
  void batch(int n, const std::function<void(void*)>& call, const std::function<void()>& tick,
             std::vector<double>& ms) {
    std::vector<std::array<Event, 2>> events(static_cast<size_t>(n));
    for (const auto& [begin, end] : events) {
      check(cudaEventRecord(begin.get(), stream_), "cudaEventRecord");
      call(stream_);
      check(cudaEventRecord(end.get(), stream_), "cudaEventRecord");
    }
    for (const auto& [begin, end] : events) {
      check(cudaEventSynchronize(end.get()), "work on the device");
      float elapsed = 0;
      check(cudaEventElapsedTime(&elapsed, begin.get(), end.get()), "cudaEventElapsedTime");
      ms.push_back(elapsed);
      tick();
    }
  }

  int ordinal_;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  Nvml nvml_;
};

}  // namespace

std::string cuda_place_refusal(int ordinal) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return "the driver offers no device (" + text_of(status) + ")";
  }
  if (ordinal >= devices)
    return "there is no CUDA device " + std::to_string(ordinal) + " (" + std::to_string(devices) +
           " visible)";
  return "";
}

std::unique_ptr<Place> cuda_place(int ordinal) {
  const std::string refusal = cuda_place_refusal(ordinal);
  if (!refusal.empty())
    throw UserError("cannot measure on CUDA device " + std::to_string(ordinal), refusal,
                    "a device that nvidia-smi shows", "--device cpu measures the CPU backend");
  return std::make_unique<CudaPlace>(ordinal);
}

}  // namespace vca::tools
