// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer: the seeds, then a fixed number of their mutations, the same
// on every machine. Coverage-guided runs: scripts/fuzz.sh.
//
//   <target> [inputs, default 20000] [first random seed]
//   <target> --write-seeds DIR
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>

#include "tests/fuzz/fuzz.hpp"

namespace {

using Input = std::vector<uint8_t>;

// A few random edits: flips, interesting integers, cuts, copies within and from another seed.
void mutate(Input& x, const Input& other, std::mt19937_64& g) {
  const auto below = [&](size_t n) { return n == 0 ? size_t{0} : static_cast<size_t>(g() % n); };
  const int edits = 1 + static_cast<int>(below(6));
  for (int e = 0; e < edits; ++e) {
    if (x.empty()) x.push_back(0);
    const size_t at = below(x.size());
    switch (below(8)) {
      case 0:
        x[at] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 1:
        x[at] = static_cast<uint8_t>(g());
        break;
      case 2: {  // an integer of 1, 2, 4 or 8 bytes at a border
        constexpr int64_t kBorders[] = {0,
                                        1,
                                        -1,
                                        127,
                                        128,
                                        255,
                                        256,
                                        65535,
                                        INT32_MAX,
                                        INT32_MIN,
                                        INT64_MAX,
                                        INT64_MIN,
                                        int64_t{1} << 32};
        const uint64_t value =
            static_cast<uint64_t>(kBorders[below(std::size(kBorders))]) + below(3) - 1;
        const size_t width = size_t{1} << below(4);
        for (size_t i = 0; i < width && at + i < x.size(); ++i)
          x[at + i] = static_cast<uint8_t>(value >> (8 * i));
        break;
      }
      case 3:
        x.resize(at);
        break;
      case 4:
        x.insert(x.begin() + static_cast<std::ptrdiff_t>(at), 1 + below(8),
                 static_cast<uint8_t>(g()));
        break;
      case 5: {
        const size_t n = std::min(below(16) + 1, x.size() - at);
        x.erase(x.begin() + static_cast<std::ptrdiff_t>(at),
                x.begin() + static_cast<std::ptrdiff_t>(at + n));
        break;
      }
      case 6: {
        const size_t from = below(x.size()), n = std::min(below(32), x.size() - std::max(from, at));
        std::memmove(x.data() + at, x.data() + from, n);
        break;
      }
      default:
        if (!other.empty()) {
          const size_t from = below(other.size());
          const size_t n = std::min({below(64), other.size() - from, x.size() - at});
          std::memcpy(x.data() + at, other.data() + from, n);
        }
    }
  }
  if (x.size() > 65536) x.resize(65536);
}

void run(const Input& x) {
  // Exactly as long as the input, so that a sanitizer sees a read behind it.
  std::vector<uint8_t> exact(x);
  exact.shrink_to_fit();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Input> seeds = vca::fuzz::seeds();
  if (argc == 3 && std::string(argv[1]) == "--write-seeds") {
    for (size_t i = 0; i < seeds.size(); ++i)
      std::ofstream(std::string(argv[2]) + "/seed-" + std::to_string(i), std::ios::binary)
          .write(reinterpret_cast<const char*>(seeds[i].data()),
                 static_cast<std::streamsize>(seeds[i].size()));
    return 0;
  }
  const long long inputs = argc > 1 ? std::atoll(argv[1]) : 20000;
  std::mt19937_64 g(argc > 2 ? static_cast<uint64_t>(std::atoll(argv[2])) : 1);
  for (const Input& x : seeds) run(x);
  run({});
  for (long long i = 0; i < inputs; ++i) {
    Input x = seeds[g() % seeds.size()];
    mutate(x, seeds[g() % seeds.size()], g);
    run(x);
  }
  std::printf("%lld inputs, no finding\n", inputs + static_cast<long long>(seeds.size()) + 1);
  return 0;
}
