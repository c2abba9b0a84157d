// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tools/vcattn/media.hpp"

namespace vca::tools {
namespace {

constexpr uint8_t kPaper = 250;
constexpr int kGap = 4;

void paste(Image& sheet, int x0, int y0, const Clip& clip, int frame, int scale) {
  const uint8_t* source = clip.frame(frame);
  for (int y = 0; y < clip.height * scale; ++y) {
    for (int x = 0; x < clip.width * scale; ++x) {
      const uint8_t* from = source + 3 * (int64_t{y / scale} * clip.width + x / scale);
      std::copy(from, from + 3, sheet.pixel(x0 + x, y0 + y));
    }
  }
}

}  // namespace

Image contact_sheet(const Clip& clip, int columns) {
  const int rows = (clip.frames + columns - 1) / columns;
  Image sheet(columns * (clip.width + kGap) + kGap, rows * (clip.height + kGap) + kGap, kPaper);
  for (int frame = 0; frame < clip.frames; ++frame) {
    paste(sheet, kGap + frame % columns * (clip.width + kGap),
          kGap + frame / columns * (clip.height + kGap), clip, frame, 1);
  }
  return sheet;
}

Image side_by_side(const std::vector<SheetRow>& rows, int columns, int scale) {
  const Clip& first = *rows.front().clip;
  const int text_scale = 2;
  const int line = (kFontHeight + 3) * text_scale;
  int label_width = 0;
  for (const SheetRow& row : rows) {
    label_width = std::max(
        {label_width, text_width(row.title, text_scale), text_width(row.note, text_scale)});
  }
  columns = std::min(columns, first.frames);
  const int cell_width = first.width * scale + kGap;
  const int cell_height = std::max(first.height * scale, 2 * line) + kGap;
  const int left = label_width + 3 * kGap;
  const int top = line + kGap;
  Image sheet(left + columns * cell_width, top + static_cast<int>(rows.size()) * cell_height,
              kPaper);
  for (int c = 0; c < columns; ++c) {
    const int frame = columns == 1 ? 0 : c * (first.frames - 1) / (columns - 1);
    std::string label = "frame " + std::to_string(frame + 1);
    if (text_width(label, text_scale) > cell_width) label = std::to_string(frame + 1);
    draw_text(sheet, left + c * cell_width, kGap, label, text_scale);
    for (size_t r = 0; r < rows.size(); ++r) {
      paste(sheet, left + c * cell_width, top + static_cast<int>(r) * cell_height, *rows[r].clip,
            frame, scale);
    }
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    const int y = top + static_cast<int>(r) * cell_height;
    draw_text(sheet, kGap, y, rows[r].title, text_scale);
    draw_text(sheet, kGap, y + line, rows[r].note, text_scale);
  }
  return sheet;
}

Clip amplified_difference(const Clip& clip, const Clip& reference, int gain) {
  Clip difference = clip;
  for (size_t i = 0; i < difference.rgb.size(); ++i) {
    const int level = 128 + gain * (int{clip.rgb[i]} - int{reference.rgb[i]});
    difference.rgb[i] = static_cast<uint8_t>(std::clamp(level, 0, 255));
  }
  return difference;
}

}  // namespace vca::tools
