// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstring>
#include <new>

#include "tools/vcattn/bench_place.hpp"
#include "tools/vcattn/machine.hpp"

namespace vca::tools {
namespace {

constexpr std::align_val_t kAlign{256};

class CpuPlace : public Place {
 public:
  explicit CpuPlace(int threads) : threads_(threads) {}

  int32_t device() const override { return -1; }
  std::string name() const override {
    return cpu_model() + ", " + std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads");
  }
  std::string driver() const override { return ""; }
  std::string clock_source() const override { return "a CPU run reads neither"; }

  void* allocate(size_t bytes) override { return ::operator new(bytes, kAlign); }
  void release(void* memory) noexcept override { ::operator delete(memory, kAlign); }
  void upload(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void download(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void run(const std::function<void(void*)>& call) override { call(nullptr); }

  Timing time(const TimingOptions& options, const std::function<void(void*)>& call,
              const std::function<void()>& tick) override {
    using Clock = std::chrono::steady_clock;
    const auto ms_since = [](Clock::time_point start) {
      return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    };
    for (int i = 0; i < options.warmup; ++i) {
      call(nullptr);
      tick();
    }
    Timing timing;
    const auto begin = Clock::now();
    for (int i = 0;
         i < options.iterations || (i < kMaxIterations && ms_since(begin) < 1e3 * options.seconds);
         ++i) {
      const auto start = Clock::now();
      call(nullptr);
      timing.ms.push_back(ms_since(start));
      tick();
    }
    return timing;
  }

 private:
  int threads_;
};

}  // namespace

std::unique_ptr<Place> cpu_place(int threads) { return std::make_unique<CpuPlace>(threads); }

}  // namespace vca::tools
