// SPDX-License-Identifier: Apache-2.0
// Where a problem is benchmarked: memory and clock of the CPU or of a CUDA device. The command
// links without CUDA; bench_place_cuda.cpp and bench_place_no_cuda.cpp are the two bodies of
// cuda_place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace vca::tools {

struct TimingOptions {
  int warmup = 5;       // calls before the first timed one
  int iterations = 30;  // timed calls, at least
  double seconds = 0;   // and as many as fill this time, up to kMaxIterations
};
inline constexpr int kMaxIterations = 10000;

struct Timing {
  std::vector<double> ms;                    // of single calls
  std::optional<double> clock_mhz, power_w;  // means over the timed calls; empty: not read
};

class Place {
 public:
  virtual ~Place() = default;

  virtual int32_t device() const = 0;            // for vca_attn_desc
  virtual std::string name() const = 0;          // of the chip
  virtual std::string driver() const = 0;        // "" on the CPU
  virtual std::string clock_source() const = 0;  // "NVML", or why there is none

  // 256-byte aligned; UserError when there is not so much.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  // After everything that was called so far.
  virtual void download(void* to, const void* from, size_t bytes) = 0;

  // `call` puts one call on the stream that it is given (NULL on the CPU). `tick` comes after every
  // call that has ended.
  virtual Timing time(const TimingOptions& options, const std::function<void(void*)>& call,
                      const std::function<void()>& tick) = 0;
  // One call, not timed.
  virtual void run(const std::function<void(void*)>& call) = 0;
};

// `threads` for what the name says.
std::unique_ptr<Place> cpu_place(int threads);

// Why there is no device to measure on; "" when there is.
std::string cuda_place_refusal(int ordinal);
// UserError with that reason.
std::unique_ptr<Place> cuda_place(int ordinal);

// Memory of a place, for as long as the object lives.
class PlaceMemory {
 public:
  PlaceMemory(Place& place, size_t bytes) : place_(&place), bytes_(bytes) {
    data_ = place.allocate(bytes);
  }
  ~PlaceMemory() { place_->release(data_); }
  PlaceMemory(const PlaceMemory&) = delete;
  PlaceMemory& operator=(const PlaceMemory&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Place* place_;
  void* data_ = nullptr;
  size_t bytes_;
};

}  // namespace vca::tools
