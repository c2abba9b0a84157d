// SPDX-License-Identifier: Apache-2.0
//
// Calibrated attention inputs of one head: q, k, v as float vectors [n][128] holding BF16 values.
// Three families with the statistics that matter for value grouping, the same on every machine (own
// counter-based generator, no std:: distributions). At 16 x 32 x 32 tokens block means remove about
// 8 % of V's energy in raster order, 12 % in space-time cubes and 36 % after plain k-means; V has
// kurtosis 8 to 12 and max/rms 30 to 40. grouping_f_test.cpp checks all of that.
//
//   ga  96 texture classes speckled over space and time + smooth fields + noise
//   gb  an 8-dimensional continuous manifold, speckled as well + smooth fields + noise
//   gc  both at once
//
// Noise is Student-t(4) per element; tokens have a log-normal scale, 0.3 % of them are outliers x4.
// Q and K are projections of the same latent plus random Fourier position features, with channel
// outliers; one temperature sets the median effective number of keys n_eff = 1 / sum p^2.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace vca::test {

enum class Family { ga, gb, gc };
inline constexpr std::array<Family, 3> kFamilies = {Family::ga, Family::gb, Family::gc};
inline const char* to_string(Family f) {
  return f == Family::ga ? "GA" : f == Family::gb ? "GB" : "GC";
}

using Grid = std::array<int64_t, 3>;
inline constexpr Grid kSmallGrid = {16, 32, 32};  // 16,384 tokens: the grid of the calibration
inline constexpr Grid kLargeGrid = {20, 48, 80};  // 76,800 tokens: about a 720p clip
inline constexpr int kHeadDim = 128;

/// Another draw of the same scene: V's noise times `gain`, from another stream. Imitates the next
/// denoising step, where the signal stays and the noise falls.
struct NoiseStep {
  double gain = 1.0;
  uint64_t stream = 0;
};

struct CalibratedTensors {
  int64_t n = 0;
  Grid grid{};
  std::vector<float> q, k, v;  // [n][128]
  double n_eff = 0.0;          // median over sampled rows, as reached
};

namespace calibrated {

/// Counter-based random numbers: a value depends on (seed, stream, index) and on nothing else.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : key_(mix(seed * kGolden + mix(stream + kGolden))) {}

  /// In (0, 1), 53 bits, never 0.
  double uniform(uint64_t index) const {
    return (static_cast<double>(mix(key_ + index * kGolden) >> 11) + 0.5) * 0x1p-53;
  }
  double normal(uint64_t index) const {  // Box-Muller
    return std::sqrt(-2.0 * std::log(uniform(2 * index))) *
           std::cos(2.0 * std::numbers::pi * uniform(2 * index + 1));
  }
  /// Unit variance would need a factor sqrt(1/2): t(4) has variance 2.
  double student_t4(uint64_t index) const {
    // Bailey's polar form: sqrt(nu (u^(-2/nu) - 1)) cos(2 pi v), exact for Student's t.
    const double u = uniform(2 * index), v = uniform(2 * index + 1);
    return std::sqrt(4.0 * (1.0 / std::sqrt(u) - 1.0)) * std::cos(2.0 * std::numbers::pi * v);
  }

 private:
  static constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  static uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64 (Steele, Lea, Flood 2014)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  uint64_t key_;
};

inline float to_bf16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  bits += 0x7FFFu + ((bits >> 16) & 1u);
  return std::bit_cast<float>(bits & 0xFFFF0000u);
}

/// Rms of each part of V per element, before the token scale; calibrated, see the file comment.
struct Mixture {
  double classes, manifold, smooth, noise;
  double class_share;  // of the tokens; the others lie on the manifold
};
inline constexpr Mixture mixture(Family f) {
  switch (f) {
    case Family::ga:
      return {1.48, 0.0, 0.66, 0.80, 1.0};
    case Family::gb:
      return {0.0, 3.6, 1.12, 0.80, 0.0};
    case Family::gc:
      break;
  }
  return {2.3, 3.2, 1.0, 0.80, 0.78};
}

inline constexpr int kClasses = 96, kManifold = 8, kFields = 16, kClassDim = 16;
inline constexpr int kLatent = kClassDim + kManifold + kFields;
inline constexpr double kTokenScaleSpread = 0.35;  // sigma of ln(scale)
inline constexpr double kOutlierShare = 0.003, kOutlierGain = 4.0;

/// What every token of a scene is made of.
struct Scene {
  int64_t n;
  std::vector<int> label;       // [n]
  std::vector<float> latent;    // [n][kLatent]: class embedding, manifold point, smooth fields
  std::vector<float> position;  // [n][kHeadDim] random Fourier features, unit rms
};

// Streams of the generator; one per quantity, so that parts can be changed without moving others.
enum Stream : uint64_t {
  kLabel = 1,
  kPoint,
  kWave,
  kWavePhase,
  kEmbedding,
  kCenter,
  kManifoldMap,
  kBend,
  kFieldMap,
  kScale,
  kOutlier,
  kNoise,
  kQueryMap,
  kKeyMap,
  kFourier,
  kFourierPhase,
  kQueryNoise,
  kKeyNoise,
  kChannel,
  kKind,
  kNoiseStream = 1000
};

/// Fields of wavelength 24 to 60 tokens in space, 12 to 40 in time; unit variance.
inline double field(const Random& wave, const Random& phase, int f, double t, double h, double w) {
  double sum = 0.0;
  constexpr int kWaves = 4;
  for (int j = 0; j < kWaves; ++j) {
    const uint64_t at = static_cast<uint64_t>(f * kWaves + j) * 3;
    const double wt = wave.normal(at) * 0.22, wh = wave.normal(at + 1) * 0.17,
                 ww = wave.normal(at + 2) * 0.12;
    sum += std::cos(wt * t + wh * h + ww * w +
                    2.0 * std::numbers::pi * phase.uniform(static_cast<uint64_t>(f * kWaves + j)));
  }
  return sum * std::sqrt(2.0 / kWaves);
}

/// Signal of V before the token scale, and the latent that Q and K see.
inline Scene make_scene(const Grid& grid, uint64_t seed) {
  Scene scene;
  scene.n = grid[0] * grid[1] * grid[2];
  scene.label.resize(scene.n);
  scene.latent.resize(scene.n * kLatent);
  scene.position.resize(scene.n * kHeadDim);
  const Random label(seed, kLabel), point(seed, kPoint), embedding(seed, kEmbedding);
  const Random wave(seed, kWave), phase(seed, kWavePhase);
  const Random fourier(seed, kFourier), fourier_phase(seed, kFourierPhase);
  for (int64_t i = 0; i < scene.n; ++i) {
    const double t = static_cast<double>(i / (grid[1] * grid[2]));
    const double h = static_cast<double>(i / grid[2] % grid[1]);
    const double w = static_cast<double>(i % grid[2]);
    // Squaring makes some classes three times as frequent as others.
    const double u = label.uniform(i);
    scene.label[i] = static_cast<int>(kClasses * (0.4 * u * u + 0.6 * u));
    float* latent = scene.latent.data() + i * kLatent;
    for (int j = 0; j < kClassDim; ++j)
      latent[j] = static_cast<float>(embedding.normal(scene.label[i] * kClassDim + j));
    for (int j = 0; j < kManifold; ++j)
      latent[kClassDim + j] = static_cast<float>(point.normal(i * kManifold + j));
    for (int f = 0; f < kFields; ++f)
      latent[kClassDim + kManifold + f] = static_cast<float>(field(wave, phase, f, t, h, w));
    float* position = scene.position.data() + i * kHeadDim;
    for (int j = 0; j < kHeadDim; ++j)
      position[j] = static_cast<float>(std::numbers::sqrt2 *
                                       std::cos(0.25 * fourier.normal(3 * j) * t +
                                                0.20 * fourier.normal(3 * j + 1) * h +
                                                0.20 * fourier.normal(3 * j + 2) * w +
                                                2.0 * std::numbers::pi * fourier_phase.uniform(j)));
  }
  return scene;
}

/// A fixed random linear map, rows of unit expected gain: out[j] = sum_i map[j][i] x[i].
inline std::vector<float> random_map(uint64_t seed, uint64_t stream, int rows, int cols) {
  const Random random(seed, stream);
  std::vector<float> map(static_cast<size_t>(rows) * cols);
  for (size_t i = 0; i < map.size(); ++i)
    map[i] = static_cast<float>(random.normal(i) / std::sqrt(static_cast<double>(cols)));
  return map;
}

inline std::vector<float> make_v(Family family, const Scene& scene, uint64_t seed,
                                 const NoiseStep& step) {
  const Mixture mix = mixture(family);
  const Random center(seed, kCenter), bend(seed, kBend), scale(seed, kScale), kind(seed, kKind);
  const Random outlier(seed, kOutlier), noise(seed, kNoiseStream + step.stream);
  const std::vector<float> manifold = random_map(seed, kManifoldMap, kHeadDim, 2 * kManifold);
  const std::vector<float> fields = random_map(seed, kFieldMap, kHeadDim, kFields);
  std::vector<float> centers(static_cast<size_t>(kClasses) * kHeadDim);
  for (size_t i = 0; i < centers.size(); ++i) centers[i] = static_cast<float>(center.normal(i));

  std::vector<float> v(scene.n * kHeadDim);
  for (int64_t i = 0; i < scene.n; ++i) {
    const float* latent = scene.latent.data() + i * kLatent;
    const float* point = latent + kClassDim;
    const float* smooth = point + kManifold;
    float curved[2 * kManifold];  // a bent sheet: the point and eight sines of it
    for (int j = 0; j < kManifold; ++j) {
      curved[j] = static_cast<float>(1.8 * std::pow(0.74, j)) * point[j];  // long and short axes
      const double turn = 1.2 * point[j] + 0.8 * point[(j + 1) % kManifold];
      const double phase = 2.0 * std::numbers::pi * bend.uniform(j);
      // Minus the mean over Gaussian points: exp(-variance / 2) sin(phase).
      const double mean = std::exp(-0.5 * (1.2 * 1.2 + 0.8 * 0.8)) * std::sin(phase);
      curved[kManifold + j] =
          static_cast<float>(0.5 * std::numbers::sqrt2 * (std::sin(turn + phase) - mean));
    }
    double gain = std::exp(kTokenScaleSpread * scale.normal(i));
    if (outlier.uniform(i) < kOutlierShare) gain *= kOutlierGain;
    const bool textured = kind.uniform(i) < mix.class_share;
    const double noise_rms = mix.noise * step.gain * std::sqrt(0.5);
    for (int j = 0; j < kHeadDim; ++j) {
      double sheet = 0.0, sway = 0.0;
      for (int m = 0; m < 2 * kManifold; ++m) sheet += manifold[j * 2 * kManifold + m] * curved[m];
      for (int f = 0; f < kFields; ++f) sway += fields[j * kFields + f] * smooth[f];
      const double signal =
          textured ? mix.classes * centers[scene.label[i] * kHeadDim + j] : mix.manifold * sheet;
      const double x = signal + mix.smooth * sway + noise_rms * noise.student_t4(i * kHeadDim + j);
      v[i * kHeadDim + j] = to_bf16(static_cast<float>(gain * x));
    }
  }
  return v;
}

/// Queries and keys before the temperature. They share half of their map, so tokens attend to
/// tokens that are like them, and the position features, so they attend to near ones.
inline std::vector<float> make_rows(Family family, const Scene& scene, uint64_t seed, bool query) {
  const std::vector<float> shared = random_map(seed, kKeyMap, kHeadDim, kLatent);
  const std::vector<float> own = random_map(seed, kQueryMap, kHeadDim, kLatent);
  const Random noise(seed, query ? kQueryNoise : kKeyNoise), channel(seed, kChannel);
  // Outlier channels: keys carry a large offset that hardly varies, queries a larger gain.
  std::array<double, kHeadDim> offset{}, gain;
  gain.fill(1.0);
  for (int j = 0; j < 4; ++j) {
    const int at = static_cast<int>(channel.uniform(2 * j) * kHeadDim);
    if (query)
      gain[at] = 2.5;
    else
      offset[at] = channel.uniform(2 * j + 1) < 0.5 ? -5.0 : 5.0;
  }
  const int first = family == Family::gb ? kClassDim : 0;  // what V does not see, keys do not
  std::vector<float> rows(scene.n * kHeadDim);
  for (int64_t i = 0; i < scene.n; ++i) {
    const float* latent = scene.latent.data() + i * kLatent;
    for (int j = 0; j < kHeadDim; ++j) {
      float x = 0.0f;
      for (int l = first; l < kLatent; ++l) {
        if (l == kClassDim && family == Family::ga) l += kManifold;
        const float key_map = shared[j * kLatent + l];
        x += latent[l] * (query ? 0.7f * key_map + 0.7f * own[j * kLatent + l] : key_map);
      }
      const double rest =
          0.7 * scene.position[i * kHeadDim + j] + 0.5 * noise.normal(i * kHeadDim + j);
      rows[i * kHeadDim + j] = static_cast<float>(gain[j] * (x + rest) + offset[j]);
    }
  }
  return rows;
}

/// Effective number of keys of one row of scores at a temperature.
inline double effective_keys(const std::vector<double>& scores, double temperature) {
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0, sum2 = 0.0;
  for (const double s : scores) {
    const double p = std::exp((s - top) * temperature);
    sum += p;
    sum2 += p * p;
  }
  return sum * sum / sum2;
}

inline double median_effective_keys(const std::vector<std::vector<double>>& rows,
                                    double temperature) {
  std::vector<double> all;
  for (const auto& scores : rows) all.push_back(effective_keys(scores, temperature));
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

}  // namespace calibrated

/// V alone, for tests that need no scores.
inline std::vector<float> make_calibrated_v(Family family, const Grid& grid, uint64_t seed,
                                            const NoiseStep& step = {}) {
  return calibrated::make_v(family, calibrated::make_scene(grid, seed), seed, step);
}

/// One head. Softmax scale is 1 / sqrt(128). `n_eff` between about 5 and n / 4 can be reached.
inline CalibratedTensors make_calibrated(Family family, const Grid& grid, double n_eff,
                                         uint64_t seed) {
  using namespace calibrated;
  CalibratedTensors out;
  const Scene scene = make_scene(grid, seed);
  out.n = scene.n;
  out.grid = grid;
  out.v = make_v(family, scene, seed, {});
  out.q = make_rows(family, scene, seed, true);
  out.k = make_rows(family, scene, seed, false);
  for (float& x : out.k) x = to_bf16(x);

  constexpr int kRows = 33;
  std::vector<std::vector<double>> scores(kRows, std::vector<double>(out.n));
  const int64_t rows = std::min<int64_t>(kRows, out.n);
  scores.resize(rows);
  for (int64_t r = 0; r < rows; ++r) {
    const float* q = out.q.data() + (r * out.n / rows) * kHeadDim;
    for (int64_t i = 0; i < out.n; ++i) {
      float s = 0.0f;
      for (int j = 0; j < kHeadDim; ++j) s += q[j] * out.k[i * kHeadDim + j];
      scores[r][i] = s / std::sqrt(static_cast<double>(kHeadDim));
    }
  }
  double low = 1e-3, high = 1e2;  // n_eff falls as the temperature factor rises
  for (int step = 0; step < 24; ++step) {
    const double middle = std::sqrt(low * high);
    (median_effective_keys(scores, middle) > n_eff ? low : high) = middle;
  }
  const double temperature = std::sqrt(low * high);
  for (float& x : out.q) x = to_bf16(static_cast<float>(x * temperature));
  out.n_eff = median_effective_keys(scores, temperature);
  return out;
}

}  // namespace vca::test
