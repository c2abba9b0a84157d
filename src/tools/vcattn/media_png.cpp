// SPDX-License-Identifier: Apache-2.0
#include <png.h>

#include <algorithm>
#include <stdexcept>

#include "tools/vcattn/media.hpp"

namespace vca::tools {

Image::Image(int width_px, int height_px, uint8_t level)
    : width(width_px), height(height_px), rgb(size_t{3} * width_px * height_px, level) {}

Bytes encode_png(const Image& image) {
  png_image header = {};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = PNG_FORMAT_RGB;
  // The first call finds the size, the second one writes.
  png_alloc_size_t size = 0;
  Bytes bytes;
  for (int pass = 0; pass < 2; ++pass) {
    void* target = pass == 0 ? nullptr : bytes.data();
    if (png_image_write_to_memory(&header, target, &size, 0, image.rgb.data(), 0, nullptr) == 0) {
      throw std::runtime_error(std::string("libpng: ") + header.message);
    }
    bytes.resize(size);
  }
  return bytes;
}

Image frame_image(const Clip& clip, int frame) {
  Image image;
  image.width = clip.width;
  image.height = clip.height;
  image.rgb.assign(clip.frame(frame), clip.frame(frame) + clip.frame_bytes());
  return image;
}

}  // namespace vca::tools
