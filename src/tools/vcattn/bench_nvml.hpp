// SPDX-License-Identifier: Apache-2.0
// Clock and power of a GPU while it works, from the driver's management library. It comes with the
// driver and not with the toolkit, so it is opened at run time and may be missing.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace vca::tools {

class Nvml {
 public:
  // `pci_bus_id` as CUDA writes it: CUDA ordinals may be in another order. Never fails: refusal()
  // says what is missing. `library` is a parameter for the tests.
  explicit Nvml(const std::string& pci_bus_id, const char* library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const std::string& refusal() const { return refusal_; }  // "" when clock and power can be read
  std::string driver() const;                              // "" when not known

  struct Reading {
    std::optional<double> clock_mhz;  // of the SMs
    std::optional<double> power_w;    // of the board, as the driver averages it
  };
  Reading read() const;

 private:
  struct Functions;
  std::unique_ptr<Functions> functions_;
  std::string refusal_;
};

// Reads in a thread of its own, right away and then every 20 ms, until stop().
class NvmlSampler {
 public:
  explicit NvmlSampler(const Nvml& nvml);
  ~NvmlSampler();
  NvmlSampler(const NvmlSampler&) = delete;
  NvmlSampler& operator=(const NvmlSampler&) = delete;

  // Means of what was read.
  Nvml::Reading stop();

 private:
  struct Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace vca::tools
