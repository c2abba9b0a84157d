// SPDX-License-Identifier: Apache-2.0
// The LPIPS loader and metric on random weights: the metric against a direct evaluation in FP64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>

#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/quality.hpp"
#include "tools/vcattn/safetensors.hpp"

namespace {

using namespace vca::tools;

struct Layer {
  const char* name;
  int in, out, kernel, stride, pad;
  bool pool_first;
};
constexpr Layer kLayers[] = {{"features.0", 3, 64, 11, 4, 2, false},
                             {"features.3", 64, 192, 5, 1, 2, true},
                             {"features.6", 192, 384, 3, 1, 1, true},
                             {"features.8", 384, 256, 3, 1, 1, false},
                             {"features.10", 256, 256, 3, 1, 1, false}};

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

Tensors random_weights() {
  std::mt19937 generator(7);
  Tensors tensors;
  const auto fill = [&](const std::string& name, std::vector<int64_t> shape, float low,
                        float high) {
    size_t count = 1;
    for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
    std::uniform_real_distribution<float> uniform(low, high);
    Tensor tensor{std::move(shape), std::vector<float>(count)};
    for (float& value : tensor.values) value = uniform(generator);
    tensors[name] = std::move(tensor);
  };
  for (int i = 0; i < 5; ++i) {
    const Layer& layer = kLayers[i];
    const float bound =
        std::sqrt(6.0F / static_cast<float>(layer.in * layer.kernel * layer.kernel));
    fill(std::string(layer.name) + ".weight", {layer.out, layer.in, layer.kernel, layer.kernel},
         -bound, bound);
    fill(std::string(layer.name) + ".bias", {layer.out}, -0.1F, 0.1F);
    fill("lin" + std::to_string(i) + ".model.1.weight", {1, layer.out, 1, 1}, 0, 1);
  }
  return tensors;
}

class LpipsTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    path_ = std::filesystem::path(testing::TempDir()) / ("lpips-" + name + ".safetensors");
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void write(const Tensors& tensors) const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, tensor] : tensors) {
      list.push_back({name, vca::spec::DType::fp32, tensor.shape, tensor.values.data()});
    }
    write_safetensors(path_, list, {});
  }

  std::string refusal() const {
    try {
      const Lpips lpips(path_);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  }

  std::filesystem::path path_;
};

Clip noise_clip(int frames, uint32_t seed) {
  std::mt19937 generator(seed);
  Clip clip{frames, 33, 40, {}};
  clip.rgb.resize(static_cast<size_t>(clip.frame_bytes() * frames));
  for (uint8_t& level : clip.rgb) level = static_cast<uint8_t>(generator() >> 24);
  return clip;
}

// [channel][y][x] in FP64.
struct Map {
  int channels, height, width;
  std::vector<double> v;
  double at(int c, int y, int x) const { return v[(c * height + y) * width + x]; }
};

Map direct_input(const Clip& clip, int frame) {
  const double shift[3] = {-0.030, -0.088, -0.188};
  const double scale[3] = {0.458, 0.448, 0.450};
  Map map{3, clip.height, clip.width, {}};
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < clip.height * clip.width; ++i) {
      map.v.push_back((clip.frame(frame)[3 * i + c] / 127.5 - 1 - shift[c]) / scale[c]);
    }
  }
  return map;
}

Map direct_pool(const Map& in) {
  Map out{in.channels, (in.height - 3) / 2 + 1, (in.width - 3) / 2 + 1, {}};
  for (int c = 0; c < out.channels; ++c) {
    for (int y = 0; y < out.height; ++y) {
      for (int x = 0; x < out.width; ++x) {
        double top = -1;
        for (int i = 0; i < 9; ++i) top = std::max(top, in.at(c, 2 * y + i / 3, 2 * x + i % 3));
        out.v.push_back(top);
      }
    }
  }
  return out;
}

Map direct_conv(const Map& in, const Layer& layer, const Tensors& tensors) {
  const std::vector<float>& weight = tensors.at(std::string(layer.name) + ".weight").values;
  const std::vector<float>& bias = tensors.at(std::string(layer.name) + ".bias").values;
  const int k = layer.kernel;
  Map out{layer.out,
          (in.height + 2 * layer.pad - k) / layer.stride + 1,
          (in.width + 2 * layer.pad - k) / layer.stride + 1,
          {}};
  for (int o = 0; o < layer.out; ++o) {
    for (int y = 0; y < out.height; ++y) {
      for (int x = 0; x < out.width; ++x) {
        double sum = bias[o];
        for (int c = 0; c < layer.in; ++c) {
          for (int ky = 0; ky < k; ++ky) {
            for (int kx = 0; kx < k; ++kx) {
              const int iy = y * layer.stride + ky - layer.pad;
              const int ix = x * layer.stride + kx - layer.pad;
              if (iy < 0 || ix < 0 || iy >= in.height || ix >= in.width) continue;
              sum += in.at(c, iy, ix) * weight[((o * layer.in + c) * k + ky) * k + kx];
            }
          }
        }
        out.v.push_back(std::max(0.0, sum));
      }
    }
  }
  return out;
}

double direct_distance(const Clip& clip, const Clip& reference, int frame, const Tensors& tensors) {
  Map maps[2] = {direct_input(clip, frame), direct_input(reference, frame)};
  double distance = 0;
  for (int i = 0; i < 5; ++i) {
    for (Map& map : maps) {
      if (kLayers[i].pool_first) map = direct_pool(map);
      map = direct_conv(map, kLayers[i], tensors);
    }
    const std::vector<float>& lin =
        tensors.at("lin" + std::to_string(i) + ".model.1.weight").values;
    double sum = 0;
    for (int y = 0; y < maps[0].height; ++y) {
      for (int x = 0; x < maps[0].width; ++x) {
        double length[2] = {};
        for (int m = 0; m < 2; ++m) {
          for (int c = 0; c < maps[m].channels; ++c) length[m] += std::pow(maps[m].at(c, y, x), 2);
          length[m] = std::sqrt(length[m]) + 1e-10;
        }
        for (int c = 0; c < maps[0].channels; ++c) {
          sum += lin[c] *
                 std::pow(maps[0].at(c, y, x) / length[0] - maps[1].at(c, y, x) / length[1], 2);
        }
      }
    }
    distance += sum / (maps[0].height * maps[0].width);
  }
  return distance;
}

TEST_F(LpipsTest, EqualsADirectEvaluation) {
  const Tensors tensors = random_weights();
  write(tensors);
  const Lpips lpips(path_);
  const Clip clip = noise_clip(2, 1);
  const Clip reference = noise_clip(2, 2);
  const double wanted = (direct_distance(clip, reference, 0, tensors) +
                         direct_distance(clip, reference, 1, tensors)) /
                        2;
  // FP32 sums of up to 3456 terms through five layers: each layer adds at most about
  // sqrt(3456) * 2^-24 = 3.5e-6 relative error, five of them and the squares stay below 1e-4.
  EXPECT_NEAR(*lpips.distance(clip, reference, 2).value, wanted, 1e-4 * wanted);
  EXPECT_GT(wanted, 0.1);
}

TEST_F(LpipsTest, EqualClipsAreAtDistanceZero) {
  write(random_weights());
  const Clip clip = noise_clip(1, 3);
  EXPECT_EQ(*Lpips(path_).distance(clip, clip, 1).value, 0);
}

TEST_F(LpipsTest, SmallFramesAreRefusedWithAReason) {
  write(random_weights());
  Clip clip{1, 16, 16, std::vector<uint8_t>(16 * 16 * 3, 1)};
  EXPECT_FALSE(Lpips(path_).distance(clip, clip, 1).value.has_value());
}

TEST_F(LpipsTest, MissingTensorIsRefused) {
  Tensors tensors = random_weights();
  tensors.erase("lin3.model.1.weight");
  write(tensors);
  EXPECT_NE(refusal().find("no tensor lin3.model.1.weight"), std::string::npos) << refusal();
}

TEST_F(LpipsTest, WrongShapeIsRefused) {
  Tensors tensors = random_weights();
  // The same number of elements, so that only the shape is wrong.
  tensors["features.3.weight"].shape = {64, 192, 5, 5};
  write(tensors);
  EXPECT_NE(refusal().find("features.3.weight, F32 [64, 192, 5, 5]"), std::string::npos)
      << refusal();
}

TEST_F(LpipsTest, NonFiniteWeightIsRefusedWithItsIndex) {
  Tensors tensors = random_weights();
  tensors["features.8.bias"].values[17] = NAN;
  write(tensors);
  EXPECT_NE(refusal().find("features.8.bias at flat index 17"), std::string::npos) << refusal();
}

}  // namespace
