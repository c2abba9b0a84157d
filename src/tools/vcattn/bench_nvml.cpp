// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/bench_nvml.hpp"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace vca::tools {

// NVML is a C ABI with versioned names; the few declarations that are needed stand here, so that
// building does not ask for its header.
struct Nvml::Functions {
  using Device = void*;
  static constexpr unsigned kClockSm = 1;  // NVML_CLOCK_SM

  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_bus_id)(const char*, Device*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*clock)(Device, unsigned, unsigned*) = nullptr;  // MHz
  int (*power)(Device, unsigned*) = nullptr;            // mW
  Device device = nullptr;
  bool running = false;

  template <class F>
  bool find(const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    return function != nullptr;
  }
  bool find_all() {
    return find("nvmlInit_v2", init) && find("nvmlShutdown", shutdown) &&
           find("nvmlDeviceGetHandleByPciBusId_v2", by_bus_id) &&
           find("nvmlSystemGetDriverVersion", driver_version) &&
           find("nvmlDeviceGetClockInfo", clock) && find("nvmlDeviceGetPowerUsage", power);
  }
  ~Functions() {
    if (running) shutdown();
    if (library != nullptr) dlclose(library);
  }
};

Nvml::Nvml(const std::string& pci_bus_id, const char* library)
    : functions_(std::make_unique<Functions>()) {
  Functions& f = *functions_;
  f.library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (f.library == nullptr) {
    refusal_ = std::string(library) + " cannot be opened";
  } else if (!f.find_all()) {
    refusal_ = std::string(library) + " lacks a function of NVML";
  } else if (const int status = f.init(); status != 0) {
    refusal_ = "nvmlInit_v2 gave error " + std::to_string(status);
  } else {
    f.running = true;
    const int found = f.by_bus_id(pci_bus_id.c_str(), &f.device);
    if (found != 0)
      refusal_ = "NVML does not know the device at " + pci_bus_id + " (error " +
                 std::to_string(found) + ")";
  }
}

Nvml::~Nvml() = default;

std::string Nvml::driver() const {
  char text[96] = {};
  if (!functions_->running || functions_->driver_version(text, sizeof text - 1) != 0) return "";
  return text;
}

Nvml::Reading Nvml::read() const {
  Reading reading;
  if (!refusal_.empty()) return reading;
  unsigned value = 0;
  if (functions_->clock(functions_->device, Functions::kClockSm, &value) == 0)
    reading.clock_mhz = value;
  if (functions_->power(functions_->device, &value) == 0) reading.power_w = value * 1e-3;
  return reading;
}

struct NvmlSampler::Thread {
  struct Mean {
    double sum = 0;
    int n = 0;
    void add(const std::optional<double>& x) {
      if (!x) return;
      sum += *x;
      ++n;
    }
    std::optional<double> value() const {
      return n > 0 ? std::optional<double>(sum / n) : std::nullopt;
    }
  };
  Mean clock, power;
  std::mutex mutex;
  std::condition_variable wake;
  bool ended = false;
  std::thread thread;
};

NvmlSampler::NvmlSampler(const Nvml& nvml) : thread_(std::make_unique<Thread>()) {
  if (!nvml.refusal().empty()) return;
  thread_->thread = std::thread([&nvml, t = thread_.get()] {
    std::unique_lock<std::mutex> lock(t->mutex);
    do {
      const Nvml::Reading reading = nvml.read();
      t->clock.add(reading.clock_mhz);
      t->power.add(reading.power_w);
    } while (!t->wake.wait_for(lock, std::chrono::milliseconds(20), [t] { return t->ended; }));
  });
}

Nvml::Reading NvmlSampler::stop() {
  {
    const std::lock_guard<std::mutex> lock(thread_->mutex);
    thread_->ended = true;
  }
  thread_->wake.notify_all();
  if (thread_->thread.joinable()) thread_->thread.join();
  return {thread_->clock.value(), thread_->power.value()};
}

NvmlSampler::~NvmlSampler() { stop(); }

}  // namespace vca::tools
