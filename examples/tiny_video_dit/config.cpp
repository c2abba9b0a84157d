// SPDX-License-Identifier: Apache-2.0
#include "examples/tiny_video_dit/config.hpp"

#include <charconv>
#include <cmath>

namespace tiny_video_dit {
namespace {

// Far above any model of this kind, far below what a 64-bit product of four of them can hold.
constexpr double kMaxDim = 8192;

class Reader {
 public:
  explicit Reader(const std::map<std::string, std::string>& metadata) : metadata_(metadata) {}

  const std::string& text(const std::string& key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) {
      throw ModelError("model metadata: \"" + key +
                       "\" is missing; a file written by examples/tiny_video_dit/train.py has it");
    }
    return found->second;
  }

  void expect(const std::string& key, const std::string& wanted) const {
    if (text(key) != wanted) fail(key, text(key), "\"" + wanted + "\"");
  }

  double number(const std::string& key, double low, double high) const {
    return parse(key, text(key), low, high);
  }

  int integer(const std::string& key, int low = 1, int high = kMaxDim) const {
    return whole(key, number(key, low, high));
  }

  std::array<int, 3> triple(const std::string& key, int low) const {
    const std::vector<std::string> parts = list(key);
    if (parts.size() != 3) fail(key, text(key), "three whole numbers separated by commas");
    std::array<int, 3> values{};
    for (int i = 0; i < 3; ++i) values[i] = whole(key, parse(key, parts[i], low, kMaxDim));
    return values;
  }

  std::vector<std::string> list(const std::string& key) const {
    std::vector<std::string> parts(1);
    for (const char c : text(key)) {
      if (c == ',') {
        parts.emplace_back();
      } else {
        parts.back() += c;
      }
    }
    return parts;
  }

  [[noreturn]] static void fail(const std::string& key, const std::string& got,
                                const std::string& allowed) {
    throw ModelError("model metadata: \"" + key + "\" is \"" + got + "\"; allowed: " + allowed);
  }

 private:
  static double parse(const std::string& key, const std::string& value, double low, double high) {
    double number = 0;
    const char* end = value.data() + value.size();
    const auto [rest, error] = std::from_chars(value.data(), end, number);
    // The negated comparison also refuses NaN.
    if (error != std::errc() || rest != end || !(number >= low && number <= high)) {
      fail(key, value, "a number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return number;
  }

  static int whole(const std::string& key, double number) {
    if (number != std::floor(number)) fail(key, std::to_string(number), "whole numbers");
    return static_cast<int>(number);
  }

  const std::map<std::string, std::string>& metadata_;
};

std::string optional_text(const std::map<std::string, std::string>& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

}  // namespace

ModelConfig parse_config(const std::map<std::string, std::string>& metadata) {
  const Reader read(metadata);
  read.expect("format", "tiny_video_dit");
  read.expect("format_version", "1");
  read.expect("prediction", "x0");
  read.expect("rope_convention", "interleaved");

  ModelConfig config;
  config.frames = read.integer("frames");
  config.height = read.integer("height");
  config.width = read.integer("width");
  config.patch = read.triple("patch", 1);
  const std::array<int, 3> grid = read.triple("grid", 1);
  config.grid = {grid[0], grid[1], grid[2]};
  config.dim = read.integer("dim", 2);
  config.layers = read.integer("layers", 1, 256);
  config.heads = read.integer("heads", 1, 64);
  config.head_dim = read.integer("head_dim", 2, 128);
  config.mlp_dim = read.integer("mlp_dim");
  config.classes = read.list("classes");
  config.rope_theta = read.number("rope_theta", 1, 1e9);
  config.rope_split = read.triple("rope_split", 0);
  config.norm_eps = read.number("norm_eps", 0, 1);
  config.time_scale = read.number("time_scale", 1e-6, 1e9);
  config.time_max_period = read.number("time_max_period", 1, 1e9);
  config.shift = read.number("shift", 1e-3, 1e3);
  config.steps = read.integer("steps", 1, 1000);
  config.guidance = read.number("guidance", 0, 100);
  config.fps = read.number("fps", 0.1, 1000);
  config.licence = optional_text(metadata, "licence");
  config.attribution = optional_text(metadata, "attribution");

  const std::array<int, 3> size = {config.frames, config.height, config.width};
  int rotated = 0;
  for (int i = 0; i < 3; ++i) {
    if (int64_t{grid[i]} * config.patch[i] != size[i]) {
      Reader::fail("grid", read.text("grid"),
                   "frames, height and width divided by the patch (" + read.text("patch") + ")");
    }
    if (config.rope_split[i] % 2 != 0) {
      Reader::fail("rope_split", read.text("rope_split"), "even channel counts");
    }
    rotated += config.rope_split[i];
  }
  if (rotated > config.head_dim) {
    Reader::fail("rope_split", read.text("rope_split"), "a sum of at most head_dim");
  }
  if (config.dim % 2 != 0) Reader::fail("dim", read.text("dim"), "an even number");
  if (config.grid.tokens() > (int64_t{1} << 22)) {
    Reader::fail("grid", read.text("grid"), "at most 4194304 tokens");
  }
  if (config.patch_dim() > kMaxDim) {
    Reader::fail("patch", read.text("patch"), "at most 8192 numbers a patch");
  }
  for (const std::string& name : config.classes) {
    if (name.empty()) Reader::fail("classes", read.text("classes"), "non-empty names");
  }
  return config;
}

}  // namespace tiny_video_dit
