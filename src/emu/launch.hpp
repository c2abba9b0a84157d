// SPDX-License-Identifier: Apache-2.0
// Runs a kernel written against src/ptx on the host: each thread of a CTA is a fiber, shared memory
// is a window with shadow state, asynchronous instructions land late. docs/emulator.md tells what
// is modelled and what is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace vca::emu {

// Order in which runnable threads continue, and when asynchronous work lands.
enum class Policy : uint8_t {
  round_robin,  // ascending threads, each until it blocks; asynchronous work at random
  reverse,      // descending threads; asynchronous work as late as possible
  random,  // any thread, pre-empted at any instruction of the layer; asynchronous work at random
  adversarial,  // random priorities of warps that change rarely, so that one warp runs far ahead;
                // asynchronous work early, late or at random in turns
};

inline constexpr Policy kAllPolicies[] = {Policy::round_robin, Policy::reverse, Policy::random,
                                          Policy::adversarial};

const char* to_string(Policy policy);

struct GlobalRange {
  const void* begin = nullptr;
  size_t bytes = 0;
};

struct LaunchConfig {
  uint32_t grid = 1;        // CTAs
  uint32_t cluster = 1;     // CTAs of a cluster, 1 to 8; the grid is a multiple
  uint32_t threads = 128;   // a multiple of 32, at most 1024
  uint32_t smem_bytes = 0;  // at most 227 KiB
  uint64_t seed = 1;
  Policy policy = Policy::round_robin;
  int host_threads = 1;    // clusters over this many OS threads; one stays on one of them
  uint32_t registers = 0;  // per thread at launch; 0 = as many as fit 65,536, at most 255
  uint64_t max_steps = 0;  // scheduling steps per CTA before it counts as a livelock; 0 = 2^40
  std::vector<GlobalRange> readable;  // where bulk copies may read; empty = anywhere
};

// The kernel broke a rule of the instruction set, or stands still.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct LaunchStats {
  uint64_t steps = 0;  // switches to a thread
  uint64_t bulk_copies = 0;
  uint64_t matrix_products = 0;
};

// Runs every thread of every CTA to its end. Throws Fault (of the first cluster that had one) or
// what the kernel itself threw. CTAs of different clusters share global memory only and must not
// wait for each other.
LaunchStats launch(const LaunchConfig& config, const std::function<void()>& kernel);

}  // namespace vca::emu
