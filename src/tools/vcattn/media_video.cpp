// SPDX-License-Identifier: Apache-2.0
// Clips through the FFmpeg libraries, into memory, so that a file on disk is written once and
// whole.
#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>

#include "tools/vcattn/media.hpp"

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
}

namespace vca::tools {
namespace {

// Below this height players show a stamp; a factor that is a multiple of 2 also keeps 4:2:0 chroma
// from blurring colours, because each sample then covers one source pixel only.
constexpr int kComfortableHeight = 360;

int check(int result, const char* doing) {
  if (result >= 0) return result;
  std::array<char, AV_ERROR_MAX_STRING_SIZE> text{};
  av_strerror(result, text.data(), text.size());
  throw std::runtime_error(std::string("FFmpeg: ") + doing + ": " + text.data());
}

template <class T>
T* check_pointer(T* pointer, const char* doing) {
  if (pointer == nullptr) throw std::runtime_error(std::string("FFmpeg: ") + doing + " failed");
  return pointer;
}

struct CodecDeleter {
  void operator()(AVCodecContext* context) const { avcodec_free_context(&context); }
};
struct FrameDeleter {
  void operator()(AVFrame* frame) const { av_frame_free(&frame); }
};
struct PacketDeleter {
  void operator()(AVPacket* packet) const { av_packet_free(&packet); }
};
struct ScalerDeleter {
  void operator()(SwsContext* scaler) const { sws_freeContext(scaler); }
};
struct BufferDeleter {
  void operator()(uint8_t* buffer) const { av_free(buffer); }
};
// A muxer that writes to memory.
struct MuxerDeleter {
  void operator()(AVFormatContext* muxer) const {
    if (muxer->pb != nullptr) {
      uint8_t* buffer = nullptr;
      avio_close_dyn_buf(muxer->pb, &buffer);
      av_free(buffer);
    }
    avformat_free_context(muxer);
  }
};

struct Recipe {
  const char* encoder;
  const char* format;
  const char* extension;
  const char* mime;
  // Private options of the encoder; quality where artefacts of the codec are far below those of
  // 8-bit attention.
  std::array<std::array<const char*, 2>, 3> options;
};
constexpr Recipe kRecipes[] = {
    // mbtree: x264 164 reads memory there that nobody set, so that the same frames gave other
    // files.
    {"libx264",
     "mp4",
     "mp4",
     "video/mp4",
     {{{"crf", "8"}, {"preset", "medium"}, {"x264-params", "mbtree=0"}}}},
    {"libvpx-vp9",
     "webm",
     "webm",
     "video/webm",
     {{{"crf", "10"}, {"deadline", "good"}, {"cpu-used", "4"}}}},
    {"mpeg4", "mp4", "mp4", "video/mp4", {}},
};

const Recipe& find_recipe(const std::string& wanted) {
  for (const Recipe& recipe : kRecipes) {
    if (!wanted.empty() && wanted != recipe.encoder) continue;
    if (avcodec_find_encoder_by_name(recipe.encoder) != nullptr) return recipe;
  }
  throw std::runtime_error("FFmpeg has no encoder for clips; wanted " +
                           (wanted.empty() ? "libx264, libvpx-vp9 or mpeg4" : wanted));
}

int upscale_factor(const Clip& clip) {
  return 2 * std::max(1, (kComfortableHeight + 2 * clip.height - 1) / (2 * clip.height));
}

class Encoder {
 public:
  Encoder(const Clip& clip, double fps, const Recipe& recipe) : clip_(clip), recipe_(recipe) {
    AVFormatContext* muxer = nullptr;
    check(avformat_alloc_output_context2(&muxer, nullptr, recipe.format, nullptr), "muxer");
    muxer_.reset(muxer);
    check(avio_open_dyn_buf(&muxer->pb), "memory for the file");
    // Without it the muxer writes its version and the file changes with every FFmpeg update.
    muxer->flags |= AVFMT_FLAG_BITEXACT;
    open_codec(fps);
    stream_ = check_pointer(avformat_new_stream(muxer, nullptr), "stream");
    check(avcodec_parameters_from_context(stream_->codecpar, codec_.get()), "stream parameters");
    stream_->time_base = codec_->time_base;
    stream_->avg_frame_rate = codec_->framerate;
    check(avformat_write_header(muxer, nullptr), "header");
    open_scaler();
    packet_.reset(check_pointer(av_packet_alloc(), "packet"));
  }

  Bytes encode() {
    for (int i = 0; i < clip_.frames; ++i) send_frame(i);
    check(avcodec_send_frame(codec_.get(), nullptr), "flush");
    receive_packets();
    check(av_write_trailer(muxer_.get()), "trailer");
    uint8_t* buffer = nullptr;
    const int size = avio_close_dyn_buf(muxer_->pb, &buffer);
    muxer_->pb = nullptr;
    const std::unique_ptr<uint8_t, BufferDeleter> owned(buffer);
    return Bytes(buffer, buffer + size);
  }

 private:
  void open_codec(double fps) {
    const AVCodec* codec = avcodec_find_encoder_by_name(recipe_.encoder);
    codec_.reset(check_pointer(avcodec_alloc_context3(codec), "encoder"));
    const int factor = upscale_factor(clip_);
    codec_->width = clip_.width * factor;
    codec_->height = clip_.height * factor;
    codec_->pix_fmt = AV_PIX_FMT_YUV420P;
    codec_->framerate = av_d2q(fps, 65535);
    codec_->time_base = av_inv_q(codec_->framerate);
    codec_->color_range = AVCOL_RANGE_MPEG;
    codec_->colorspace = AVCOL_SPC_BT709;
    codec_->color_primaries = AVCOL_PRI_BT709;
    codec_->color_trc = AVCOL_TRC_BT709;
    codec_->gop_size = clip_.frames;
    // One thread and no version strings: the same frames give the same file.
    codec_->thread_count = 1;
    codec_->flags |= AV_CODEC_FLAG_BITEXACT;
    if ((muxer_->oformat->flags & AVFMT_GLOBALHEADER) != 0) {
      codec_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    }
    if (std::string(recipe_.encoder) == "mpeg4") {
      codec_->flags |= AV_CODEC_FLAG_QSCALE;
      codec_->global_quality = FF_QP2LAMBDA * 2;
    }
    for (const auto& [name, value] : recipe_.options) {
      if (name != nullptr) check(av_opt_set(codec_->priv_data, name, value, 0), name);
    }
    check(avcodec_open2(codec_.get(), codec, nullptr), "open the encoder");
  }

  void open_scaler() {
    const int flags = SWS_POINT | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP;
    scaler_.reset(check_pointer(
        sws_getContext(clip_.width, clip_.height, AV_PIX_FMT_RGB24, codec_->width, codec_->height,
                       codec_->pix_fmt, flags, nullptr, nullptr, nullptr),
        "scaler"));
    const int* bt709 = sws_getCoefficients(SWS_CS_ITU709);
    check(sws_setColorspaceDetails(scaler_.get(), bt709, 1, bt709, 0, 0, 1 << 16, 1 << 16),
          "colour space");
    frame_.reset(check_pointer(av_frame_alloc(), "frame"));
    frame_->format = codec_->pix_fmt;
    frame_->width = codec_->width;
    frame_->height = codec_->height;
    check(av_frame_get_buffer(frame_.get(), 0), "frame memory");
  }

  void send_frame(int index) {
    // The encoder may still hold the last frame's memory.
    check(av_frame_make_writable(frame_.get()), "frame memory");
    const uint8_t* planes[4] = {clip_.frame(index), nullptr, nullptr, nullptr};
    const int strides[4] = {3 * clip_.width, 0, 0, 0};
    check(
        sws_scale(scaler_.get(), planes, strides, 0, clip_.height, frame_->data, frame_->linesize),
        "scale");
    frame_->pts = index;
    check(avcodec_send_frame(codec_.get(), frame_.get()), "encode");
    receive_packets();
  }

  void receive_packets() {
    while (true) {
      const int result = avcodec_receive_packet(codec_.get(), packet_.get());
      if (result == AVERROR(EAGAIN) || result == AVERROR_EOF) return;
      check(result, "encode");
      packet_->stream_index = stream_->index;
      packet_->duration = 1;
      av_packet_rescale_ts(packet_.get(), codec_->time_base, stream_->time_base);
      check(av_interleaved_write_frame(muxer_.get(), packet_.get()), "write");
    }
  }

  const Clip& clip_;
  const Recipe& recipe_;
  std::unique_ptr<AVFormatContext, MuxerDeleter> muxer_;
  std::unique_ptr<AVCodecContext, CodecDeleter> codec_;
  std::unique_ptr<SwsContext, ScalerDeleter> scaler_;
  std::unique_ptr<AVFrame, FrameDeleter> frame_;
  std::unique_ptr<AVPacket, PacketDeleter> packet_;
  AVStream* stream_ = nullptr;  // owned by the muxer
};

}  // namespace

void require_video_encoder() { find_recipe(""); }

Video encode_video(const Clip& clip, double fps, const std::string& encoder) {
  av_log_set_level(AV_LOG_ERROR);
  const Recipe& recipe = find_recipe(encoder);
  return {Encoder(clip, fps, recipe).encode(), recipe.extension, recipe.mime, recipe.encoder};
}

}  // namespace vca::tools
