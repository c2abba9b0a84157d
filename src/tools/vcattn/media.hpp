// SPDX-License-Identifier: Apache-2.0
// Pictures and clips as bytes in memory: PNG, playable video, sheets of frames with labels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "examples/tiny_video_dit/sampler.hpp"

namespace vca::tools {

using Clip = tiny_video_dit::Clip;
using Bytes = std::vector<uint8_t>;

// RGB, one byte a channel, rows without gaps.
struct Image {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> rgb;

  Image() = default;
  Image(int width_px, int height_px, uint8_t level);
  uint8_t* pixel(int x, int y) { return rgb.data() + 3 * (int64_t{y} * width + x); }
};

Bytes encode_png(const Image& image);
Image frame_image(const Clip& clip, int frame);

struct Video {
  Bytes bytes;
  std::string extension;  // "mp4" or "webm"
  std::string mime;
  std::string encoder;  // FFmpeg's name
};

// Encodes with the named encoder, or with the first of libx264, libvpx-vp9 and mpeg4 that this
// FFmpeg has (every browser plays the first two). Throws std::runtime_error when FFmpeg has none of
// them or fails.
Video encode_video(const Clip& clip, double fps, const std::string& encoder = "");

// Throws std::runtime_error when FFmpeg has none of the encoders.
void require_video_encoder();

// Text in the built-in 5 x 7 font; each font pixel becomes scale x scale image pixels.
int text_width(std::string_view text, int scale);
inline constexpr int kFontHeight = 7;
void draw_text(Image& image, int x, int y, std::string_view text, int scale);

// All frames of a clip in reading order.
Image contact_sheet(const Clip& clip, int columns);

struct SheetRow {
  const Clip* clip = nullptr;
  std::string title;
  std::string note;  // second line
};

// One row per clip, `columns` evenly spaced frames of each, the frame number above each column.
Image side_by_side(const std::vector<SheetRow>& rows, int columns, int scale);

// 128 + gain * (clip - reference), saturated: what the eye misses in the side-by-side sheet.
Clip amplified_difference(const Clip& clip, const Clip& reference, int gain);

}  // namespace vca::tools
