// SPDX-License-Identifier: Apache-2.0
// A build without CUDA.
#include "tools/vcattn/bench_place.hpp"
#include "tools/vcattn/errors.hpp"

namespace vca::tools {

std::string cuda_place_refusal(int) { return "this build has no CUDA kernels"; }

std::unique_ptr<Place> cuda_place(int ordinal) {
  throw UserError("cannot measure on a CUDA device", cuda_place_refusal(ordinal), "--device cpu",
                  "build with CUDA: make cuda");
}

}  // namespace vca::tools
