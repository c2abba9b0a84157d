// SPDX-License-Identifier: Apache-2.0
#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/interrupt.hpp"
#include "tools/vcattn/quality.hpp"
#include "tools/vcattn/safetensors.hpp"

namespace vca::tools {
namespace {

// Channels first: [channels][height][width].
struct Planes {
  int channels = 0;
  int height = 0;
  int width = 0;
  std::vector<float> values;
};

struct ConvShape {
  const char* name;  // torchvision's name of the layer in AlexNet
  int in, out, kernel, stride, pad;
  bool pool_first;  // 3 x 3 maximum with stride 2 before the convolution
};
constexpr std::array<ConvShape, 5> kConvs = {{
    {"features.0", 3, 64, 11, 4, 2, false},
    {"features.3", 64, 192, 5, 1, 2, true},
    {"features.6", 192, 384, 3, 1, 1, true},
    {"features.8", 384, 256, 3, 1, 1, false},
    {"features.10", 256, 256, 3, 1, 1, false},
}};

// The network's input is (x - shift) / scale for x in [-1, 1].
constexpr std::array<float, 3> kInputShift = {-0.030F, -0.088F, -0.188F};
constexpr std::array<float, 3> kInputScale = {0.458F, 0.448F, 0.450F};
constexpr float kNormEps = 1e-10F;
// Below this side the third pooling would leave nothing.
constexpr int kMinSide = 32;

Planes network_input(const Clip& clip, int frame) {
  Planes planes{3, clip.height, clip.width, {}};
  const uint8_t* rgb = clip.frame(frame);
  const int64_t pixels = int64_t{clip.height} * clip.width;
  planes.values.resize(static_cast<size_t>(3 * pixels));
  for (int c = 0; c < 3; ++c) {
    for (int64_t i = 0; i < pixels; ++i) {
      const float x = static_cast<float>(rgb[3 * i + c]) / 127.5F - 1.0F;
      planes.values[c * pixels + i] = (x - kInputShift[c]) / kInputScale[c];
    }
  }
  return planes;
}

Planes max_pool(const Planes& in) {
  Planes out{in.channels, (in.height - 3) / 2 + 1, (in.width - 3) / 2 + 1, {}};
  out.values.reserve(static_cast<size_t>(out.channels) * out.height * out.width);
  for (int c = 0; c < out.channels; ++c) {
    for (int y = 0; y < out.height; ++y) {
      for (int x = 0; x < out.width; ++x) {
        const float* corner = in.values.data() +
                              (int64_t{c} * in.height + int64_t{2} * y) * in.width + int64_t{2} * x;
        float top = corner[0];
        for (int i = 0; i < 9; ++i) top = std::max(top, corner[i / 3 * in.width + i % 3]);
        out.values.push_back(top);
      }
    }
  }
  return out;
}

Planes convolve_relu(const Planes& in, const ConvShape& shape, const std::vector<float>& weight,
                     const std::vector<float>& bias) {
  Planes out{shape.out,
             (in.height + 2 * shape.pad - shape.kernel) / shape.stride + 1,
             (in.width + 2 * shape.pad - shape.kernel) / shape.stride + 1,
             {}};
  const int64_t pixels = int64_t{out.height} * out.width;
  const int taps = shape.in * shape.kernel * shape.kernel;
  // Row (channel, ky, kx) of the unrolled input holds that tap for every output pixel.
  std::vector<float> unrolled(static_cast<size_t>(taps * pixels), 0.0F);
  for (int tap = 0; tap < taps; ++tap) {
    const int channel = tap / (shape.kernel * shape.kernel);
    const int ky = tap / shape.kernel % shape.kernel;
    const int kx = tap % shape.kernel;
    float* row = unrolled.data() + tap * pixels;
    for (int64_t p = 0; p < pixels; ++p) {
      const int64_t y = p / out.width * shape.stride + ky - shape.pad;
      const int64_t x = p % out.width * shape.stride + kx - shape.pad;
      if (y < 0 || x < 0 || y >= in.height || x >= in.width) continue;
      row[p] = in.values[(int64_t{channel} * in.height + y) * in.width + x];
    }
  }
  out.values.resize(static_cast<size_t>(shape.out * pixels));
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, shape.out, static_cast<int>(pixels), taps,
              1.0F, weight.data(), taps, unrolled.data(), static_cast<int>(pixels), 0.0F,
              out.values.data(), static_cast<int>(pixels));
  for (int c = 0; c < shape.out; ++c) {
    for (int64_t p = 0; p < pixels; ++p) {
      float& value = out.values[c * pixels + p];
      value = std::max(0.0F, value + bias[c]);
    }
  }
  return out;
}

// Channel vectors of each pixel scaled to length 1, squared difference weighted by `lin`, mean.
double layer_distance(const Planes& a, const Planes& b, const std::vector<float>& lin) {
  const int64_t pixels = int64_t{a.height} * a.width;
  double sum = 0;
  for (int64_t p = 0; p < pixels; ++p) {
    float squares_a = 0;
    float squares_b = 0;
    for (int c = 0; c < a.channels; ++c) {
      squares_a += a.values[c * pixels + p] * a.values[c * pixels + p];
      squares_b += b.values[c * pixels + p] * b.values[c * pixels + p];
    }
    const float length_a = std::sqrt(squares_a) + kNormEps;
    const float length_b = std::sqrt(squares_b) + kNormEps;
    for (int c = 0; c < a.channels; ++c) {
      const float difference =
          a.values[c * pixels + p] / length_a - b.values[c * pixels + p] / length_b;
      sum += double{lin[c]} * difference * difference;
    }
  }
  return sum / static_cast<double>(pixels);
}

std::vector<float> load(const SafetensorsFile& file, const std::string& name,
                        const std::vector<int64_t>& shape) {
  const std::string wanted = "tensor " + name + ", F32 " + shape_text(shape);
  const TensorInfo* info = file.find(name);
  if (info == nullptr || info->dtype != "F32" || info->shape != shape) {
    throw UserError("not LPIPS weights: " + file.path().string(),
                    info == nullptr ? "no tensor " + name
                                    : name + ", " + info->dtype + " " + shape_text(info->shape),
                    wanted, "docs/tiny-video-dit.md says how to make the file");
  }
  const int64_t bad = first_non_finite(file.data(*info), spec::DType::fp32, info->elements());
  if (bad >= 0) {
    throw UserError("damaged LPIPS weights: " + file.path().string(),
                    "NaN or Inf in " + name + " at flat index " + std::to_string(bad),
                    "finite numbers", "docs/tiny-video-dit.md says how to make the file");
  }
  std::vector<float> values(static_cast<size_t>(info->elements()));
  std::memcpy(values.data(), file.data(*info), values.size() * sizeof(float));
  return values;
}

}  // namespace

struct Lpips::Network {
  std::array<std::vector<float>, kConvs.size()> weight, bias, lin;

  double frame_distance(const Clip& clip, const Clip& reference, int frame) const {
    Planes a = network_input(clip, frame);
    Planes b = network_input(reference, frame);
    double sum = 0;
    for (size_t i = 0; i < kConvs.size(); ++i) {
      for (Planes* planes : {&a, &b}) {
        if (kConvs[i].pool_first) *planes = max_pool(*planes);
        *planes = convolve_relu(*planes, kConvs[i], weight[i], bias[i]);
      }
      sum += layer_distance(a, b, lin[i]);
    }
    return sum;
  }
};

Lpips::Lpips(const std::filesystem::path& weights) : network_(std::make_unique<Network>()) {
  const SafetensorsFile file(weights);
  for (size_t i = 0; i < kConvs.size(); ++i) {
    const ConvShape& conv = kConvs[i];
    const std::string name = conv.name;
    network_->weight[i] =
        load(file, name + ".weight", {conv.out, conv.in, conv.kernel, conv.kernel});
    network_->bias[i] = load(file, name + ".bias", {conv.out});
    network_->lin[i] =
        load(file, "lin" + std::to_string(i) + ".model.1.weight", {1, conv.out, 1, 1});
  }
}

Lpips::~Lpips() = default;
Lpips::Lpips(Lpips&&) noexcept = default;
Lpips& Lpips::operator=(Lpips&&) noexcept = default;

Measure Lpips::distance(const Clip& clip, const Clip& reference, int threads) const {
  if (std::min(clip.height, clip.width) < kMinSide) {
    return {std::nullopt, "needs frames of at least 32 x 32 pixels"};
  }
  // Frames run in parallel, BLAS inside a frame does not.
  openblas_set_num_threads(1);
  std::vector<double> distances(static_cast<size_t>(clip.frames));
#pragma omp parallel num_threads(threads)
  {
    omp_set_num_threads(1);  // for OpenBLAS in a team of one: see for_each_tile in dit.cpp
#pragma omp for schedule(dynamic, 1)
    for (int frame = 0; frame < clip.frames; ++frame) {
      if (!interrupted()) distances[frame] = network_->frame_distance(clip, reference, frame);
    }
  }
  check_interrupt();
  double sum = 0;
  for (const double distance : distances) sum += distance;
  return {sum / clip.frames, ""};
}

}  // namespace vca::tools
