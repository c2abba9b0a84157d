// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/quality.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace vca::tools {
namespace {

constexpr int kWindow = 11;
constexpr double kSigma = 1.5;
constexpr double kC1 = (0.01 * 255) * (0.01 * 255);
constexpr double kC2 = (0.03 * 255) * (0.03 * 255);

std::array<double, kWindow> gaussian() {
  std::array<double, kWindow> weights{};
  double sum = 0;
  for (int i = 0; i < kWindow; ++i) {
    const double x = i - kWindow / 2;
    weights[i] = std::exp(-x * x / (2 * kSigma * kSigma));
    sum += weights[i];
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::vector<double> luma(const Clip& clip, int frame) {
  const uint8_t* rgb = clip.frame(frame);
  std::vector<double> y(static_cast<size_t>(clip.width) * clip.height);
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = 0.299 * rgb[3 * i] + 0.587 * rgb[3 * i + 1] + 0.114 * rgb[3 * i + 2];
  }
  return y;
}

// Weighted local means of a plane, separable; only windows inside the plane.
std::vector<double> local_mean(const std::vector<double>& plane, int width, int height) {
  static const std::array<double, kWindow> kWeights = gaussian();
  const int out_width = width - kWindow + 1;
  const int out_height = height - kWindow + 1;
  std::vector<double> rows(static_cast<size_t>(out_width) * height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < out_width; ++x) {
      double sum = 0;
      for (int i = 0; i < kWindow; ++i) sum += kWeights[i] * plane[int64_t{y} * width + x + i];
      rows[int64_t{y} * out_width + x] = sum;
    }
  }
  std::vector<double> mean(static_cast<size_t>(out_width) * out_height);
  for (int y = 0; y < out_height; ++y) {
    for (int x = 0; x < out_width; ++x) {
      double sum = 0;
      for (int i = 0; i < kWindow; ++i) sum += kWeights[i] * rows[int64_t{y + i} * out_width + x];
      mean[int64_t{y} * out_width + x] = sum;
    }
  }
  return mean;
}

std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = a[i] * b[i];
  return result;
}

double frame_ssim(const Clip& clip, const Clip& reference, int frame) {
  const int width = clip.width;
  const int height = clip.height;
  const std::vector<double> a = luma(clip, frame);
  const std::vector<double> b = luma(reference, frame);
  const std::vector<double> mean_a = local_mean(a, width, height);
  const std::vector<double> mean_b = local_mean(b, width, height);
  const std::vector<double> mean_aa = local_mean(product(a, a), width, height);
  const std::vector<double> mean_bb = local_mean(product(b, b), width, height);
  const std::vector<double> mean_ab = local_mean(product(a, b), width, height);
  double sum = 0;
  for (size_t i = 0; i < mean_a.size(); ++i) {
    const double ma = mean_a[i];
    const double mb = mean_b[i];
    const double var_a = mean_aa[i] - ma * ma;
    const double var_b = mean_bb[i] - mb * mb;
    const double cov = mean_ab[i] - ma * mb;
    sum +=
        (2 * ma * mb + kC1) * (2 * cov + kC2) / ((ma * ma + mb * mb + kC1) * (var_a + var_b + kC2));
  }
  return sum / static_cast<double>(mean_a.size());
}

}  // namespace

double psnr_db(const Clip& clip, const Clip& reference) {
  int64_t squares = 0;
  for (size_t i = 0; i < clip.rgb.size(); ++i) {
    const int64_t difference = int64_t{clip.rgb[i]} - int64_t{reference.rgb[i]};
    squares += difference * difference;
  }
  if (squares == 0) return std::numeric_limits<double>::infinity();
  const double mean = static_cast<double>(squares) / static_cast<double>(clip.rgb.size());
  return 10 * std::log10(255.0 * 255.0 / mean);
}

Measure ssim(const Clip& clip, const Clip& reference) {
  if (clip.width < kWindow || clip.height < kWindow) {
    return {std::nullopt, "needs frames of at least 11 x 11 pixels"};
  }
  double sum = 0;
  for (int frame = 0; frame < clip.frames; ++frame) sum += frame_ssim(clip, reference, frame);
  return {sum / clip.frames, ""};
}

}  // namespace vca::tools
