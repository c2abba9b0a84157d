// SPDX-License-Identifier: Apache-2.0
// Pictures and clips must be what other programs read back.
#include <gtest/gtest.h>
#include <malloc.h>
#include <png.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tools/vcattn/media.hpp"
#include "tools/vcattn/quality.hpp"
#include "tools/vcattn/subprocess.hpp"

extern "C" {
#include <libavcodec/avcodec.h>
}

namespace {

using namespace vca::tools;
namespace fs = std::filesystem;

// Smooth colours that move by two pixels a frame.
Clip moving_clip(int frames, int height, int width) {
  Clip clip{frames, height, width, {}};
  for (int f = 0; f < frames; ++f) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const double phase = 0.2 * (x + 2 * f) + 0.1 * y;
        for (int c = 0; c < 3; ++c) {
          clip.rgb.push_back(static_cast<uint8_t>(128 + 90 * std::sin(phase + c)));
        }
      }
    }
  }
  return clip;
}

Image decode_png(const Bytes& bytes) {
  png_image header = {};
  header.version = PNG_IMAGE_VERSION;
  EXPECT_NE(png_image_begin_read_from_memory(&header, bytes.data(), bytes.size()), 0);
  header.format = PNG_FORMAT_RGB;
  Image image(static_cast<int>(header.width), static_cast<int>(header.height), 0);
  EXPECT_NE(png_image_finish_read(&header, nullptr, image.rgb.data(), 0, nullptr), 0);
  return image;
}

TEST(Media, PngKeepsEveryPixel) {
  const Clip clip = moving_clip(1, 17, 23);
  const Image image = decode_png(encode_png(frame_image(clip, 0)));
  EXPECT_EQ(image.width, 23);
  EXPECT_EQ(image.height, 17);
  EXPECT_EQ(image.rgb, clip.rgb);
}

class MediaVideo : public testing::TestWithParam<const char*> {};

TEST_P(MediaVideo, IsReadBackByFfmpeg) {
  if (avcodec_find_encoder_by_name(GetParam()) == nullptr) {
    GTEST_SKIP() << "this FFmpeg has no " << GetParam();
  }
  const Clip clip = moving_clip(6, 40, 56);
  const Video video = encode_video(clip, 12, GetParam());
  EXPECT_EQ(video.encoder, GetParam());
  const fs::path dir = fs::path(testing::TempDir()) / ("media-" + std::string(GetParam()));
  fs::create_directories(dir);
  const fs::path file = dir / ("clip." + video.extension);
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(video.bytes.data()),
             static_cast<std::streamsize>(video.bytes.size()));

  const ProcessResult probe =
      run_process({"ffprobe", "-v", "error", "-count_frames", "-show_entries",
                   "stream=width,height,nb_read_frames,r_frame_rate", "-of",
                   "default=noprint_wrappers=1", file.string()});
  EXPECT_EQ(probe.exit_code, 0) << probe.output;
  // The smallest even factor that reaches 360 rows is 10.
  EXPECT_NE(probe.output.find("width=560\n"), std::string::npos) << probe.output;
  EXPECT_NE(probe.output.find("height=400\n"), std::string::npos) << probe.output;
  EXPECT_NE(probe.output.find("nb_read_frames=6\n"), std::string::npos) << probe.output;
  EXPECT_NE(probe.output.find("r_frame_rate=12/1\n"), std::string::npos) << probe.output;

  const fs::path raw = dir / "raw.rgb";
  const ProcessResult decode = run_process(
      {"ffmpeg", "-nostdin", "-v", "error", "-y", "-i", file.string(), "-sws_flags",
       "accurate_rnd+full_chroma_int+full_chroma_inp", "-vf", "scale=in_color_matrix=bt709",
       "-pix_fmt", "rgb24", "-f", "rawvideo", raw.string()});
  ASSERT_EQ(decode.exit_code, 0) << decode.output;
  Clip large{6, 400, 560, std::vector<uint8_t>(100 * clip.rgb.size())};
  std::ifstream(raw, std::ios::binary)
      .read(reinterpret_cast<char*>(large.rgb.data()),
            static_cast<std::streamsize>(large.rgb.size()));
  Clip back = clip;
  for (int f = 0; f < 6; ++f) {
    for (int i = 0; i < 40 * 56; ++i) {
      const int centre = (i / 56 * 10 + 5) * 560 + i % 56 * 10 + 5;
      std::copy_n(large.frame(f) + 3 * centre, 3, back.frame(f) + 3 * i);
    }
  }
  // 8-bit studio-range YUV costs about one level a channel (PSNR 48 dB); the encoder may add as
  // much again. A swapped channel, a wrong matrix, range or frame ends far below 40 dB.
  EXPECT_GT(psnr_db(back, clip), 40);
  fs::remove_all(dir);
}

INSTANTIATE_TEST_SUITE_P(Encoders, MediaVideo, testing::Values("libx264", "libvpx-vp9", "mpeg4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(Media, SameClipSameFile) {
  const Clip clip = moving_clip(5, 32, 32);
  EXPECT_EQ(encode_video(clip, 12).bytes, encode_video(clip, 12).bytes);
}

// The size of the demo's clips, with fresh memory full of other bytes each time: an encoder that
// reads what nobody set writes other files.
TEST(Media, SameClipSameFileWhateverMemoryHeld) {
  const Clip clip = moving_clip(12, 208, 368);
  std::vector<Bytes> files;
  for (const int fill : {0x55, 0xAA, 0x01}) {
    ASSERT_EQ(mallopt(M_PERTURB, fill), 1);
    files.push_back(encode_video(clip, 12).bytes);
  }
  mallopt(M_PERTURB, 0);
  EXPECT_EQ(files[0], files[1]);
  EXPECT_EQ(files[0], files[2]);
}

TEST(Media, UnknownEncoderIsRefused) {
  EXPECT_THROW(encode_video(moving_clip(1, 16, 16), 12, "no-such-encoder"), std::runtime_error);
}

TEST(Media, TextIsDrawnInsideTheImageOnly) {
  Image image(12, 9, 255);
  draw_text(image, 0, 0, "|", 1);
  int ink = 0;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) ink += image.pixel(x, y)[0] < 128 ? 1 : 0;
    if (y < kFontHeight) {
      EXPECT_LT(image.pixel(2, y)[0], 128) << y;
    }
  }
  EXPECT_EQ(ink, kFontHeight);
  // Partly and wholly outside; a sanitizer run sees any stray write.
  draw_text(image, -3, -4, "Wg", 2);
  draw_text(image, 100, 100, "W", 3);
}

TEST(Media, EveryPrintableCharacterHasItsOwnGlyph) {
  std::vector<std::vector<uint8_t>> seen;
  for (char c = ' '; c <= '~'; ++c) {
    Image image(6, 10, 255);
    draw_text(image, 0, 0, std::string(1, c), 1);
    for (const auto& other : seen) EXPECT_NE(other, image.rgb) << c;
    seen.push_back(image.rgb);
  }
}

TEST(Media, ContactSheetShowsEveryFrame) {
  const Clip clip = moving_clip(5, 8, 10);
  Image sheet = contact_sheet(clip, 3);
  EXPECT_EQ(sheet.width, 3 * 14 + 4);
  EXPECT_EQ(sheet.height, 2 * 12 + 4);
  // Frame 4 stands in row 1, column 1.
  const uint8_t* corner = sheet.pixel(4 + 14, 4 + 12);
  EXPECT_TRUE(std::equal(corner, corner + 3, clip.frame(4)));
}

TEST(Media, SideBySideHasARowPerClip) {
  const Clip clip = moving_clip(5, 40, 100);
  const std::vector<SheetRow> rows = {{&clip, "bf16", "reference"}, {&clip, "vc8", "50 dB"}};
  Image sheet = side_by_side(rows, 3, 1);
  const int left = sheet.width - 3 * 104;
  const int top = sheet.height - 2 * 44;
  for (int c = 0; c < 3; ++c) {
    for (int r = 0; r < 2; ++r) {
      const uint8_t* corner = sheet.pixel(left + c * 104, top + r * 44);
      EXPECT_TRUE(std::equal(corner, corner + 3, clip.frame(2 * c))) << r << " " << c;
    }
  }
}

TEST(Media, DifferenceIsAmplifiedAndSaturates) {
  Clip reference{1, 1, 1, {100, 100, 100}};
  Clip clip{1, 1, 1, {101, 98, 200}};
  EXPECT_EQ(amplified_difference(clip, reference, 8).rgb, (std::vector<uint8_t>{136, 112, 255}));
}

}  // namespace
