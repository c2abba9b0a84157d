// SPDX-License-Identifier: Apache-2.0
// How far a clip is from the reference clip, as people see it.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/vcattn/media.hpp"

namespace vca::tools {

// 10 log10(255^2 / mean squared error) over all channels, pixels and frames; infinity when equal.
double psnr_db(const Clip& clip, const Clip& reference);

// A number, or the reason why there is none.
struct Measure {
  std::optional<double> value;
  std::string reason;
};

// Structural similarity (Wang et al. 2004) of BT.601 luma, Gaussian window of 11 pixels and sigma
// 1.5, K1 = 0.01, K2 = 0.03, windows that lie inside the picture only, mean over windows and
// frames.
Measure ssim(const Clip& clip, const Clip& reference);

// Measures of other projects' programs, run on frames in a temporary directory. A program that is
// missing or fails gives no value and a reason; names and directions of the measures:
//   ssimulacra2  (libjxl's ssimulacra2)      100 = equal, higher is better
//   ssimulacra   (libjxl's ssimulacra_main)    0 = equal, lower is better
//   butteraugli  (libjxl's butteraugli_main, 3-norm) 0 = equal, lower is better
//   vif          (FFmpeg's filter, mean of its four scales) 1 = equal, higher is better
// libjxl's measures are means over frames.
inline constexpr const char* kPerceptualMeasures[] = {"ssimulacra2", "ssimulacra", "butteraugli",
                                                      "vif"};

class PerceptualTools {
 public:
  // Writes the reference's frames; the directory goes with the object. std::runtime_error when
  // that is not possible.
  PerceptualTools(const Clip& reference, double fps, int threads);
  ~PerceptualTools();
  PerceptualTools(const PerceptualTools&) = delete;
  PerceptualTools& operator=(const PerceptualTools&) = delete;

  std::map<std::string, Measure> measure(const Clip& clip) const;

 private:
  std::filesystem::path dir_;
  int frames_;
  double fps_;
  int threads_;
};

// LPIPS (Zhang et al. 2018), AlexNet, version 0.1, with weights that the user brings: the file and
// the tensor names are described in docs/tiny-video-dit.md. No weights come with the project.
class Lpips {
 public:
  // UserError for a file that does not have exactly the wanted tensors.
  explicit Lpips(const std::filesystem::path& weights);
  ~Lpips();
  Lpips(Lpips&&) noexcept;
  Lpips& operator=(Lpips&&) noexcept;

  // Mean distance over frames; 0 for equal clips. Frames need 32 pixels a side.
  Measure distance(const Clip& clip, const Clip& reference, int threads) const;

 private:
  struct Network;
  std::unique_ptr<Network> network_;
};

}  // namespace vca::tools
