// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "tools/vcattn/interrupt.hpp"
#include "tools/vcattn/quality.hpp"
#include "tools/vcattn/subprocess.hpp"

namespace vca::tools {
namespace {

namespace fs = std::filesystem;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::error_code ignored;
    const fs::path base = fs::temp_directory_path(ignored);
    std::string name = ((ignored ? fs::path("/tmp") : base) / "vcattn-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("cannot create a temporary directory " + name +
                               "; set TMPDIR to a place that you may write to");
    }
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const fs::path& path() const { return path_; }
  fs::path release() { return std::exchange(path_, fs::path()); }

 private:
  fs::path path_;
};

std::string frame_name(const char* prefix, int frame) {
  const std::string digits = std::to_string(frame + 1);
  return prefix + std::string(4 - std::min<size_t>(4, digits.size()), '0') + digits + ".png";
}

void write_frames(const fs::path& dir, const char* prefix, const Clip& clip) {
  for (int frame = 0; frame < clip.frames; ++frame) {
    const Bytes png = encode_png(frame_image(clip, frame));
    const fs::path path = dir / frame_name(prefix, frame);
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(png.data()), static_cast<std::streamsize>(png.size()));
    file.close();
    if (!file) {
      throw std::runtime_error("cannot write " + path.string() +
                               "; free some space or set TMPDIR to another place");
    }
  }
}

std::optional<double> parse_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// The number after the last `label` in the text; with an empty label the number on the last line.
std::optional<double> number_after(const std::string& text, const std::string& label) {
  if (label.empty()) {
    const size_t end = text.find_last_not_of(" \r\n");
    if (end == std::string::npos) return std::nullopt;
    const size_t newline = text.rfind('\n', end);
    const size_t start = newline == std::string::npos ? 0 : newline + 1;
    return parse_number(std::string_view(text).substr(start, end + 1 - start));
  }
  const size_t at = text.rfind(label);
  if (at == std::string::npos) return std::nullopt;
  return parse_number(std::string_view(text).substr(at + label.size()));
}

struct FrameTool {
  const char* measure;
  const char* program;
  std::vector<std::string> options;  // after the two pictures
  const char* label;                 // printed before the number
};

const std::vector<FrameTool>& frame_tools() {
  static const std::vector<FrameTool> kTools = {
      {"ssimulacra2", "ssimulacra2", {}, ""},
      {"ssimulacra", "ssimulacra_main", {}, ""},
      {"butteraugli", "butteraugli_main", {"--pnorm", "3"}, "3-norm:"},
  };
  return kTools;
}

Measure missing(const std::string& program, const char* package) {
  return {std::nullopt, "program " + program + " not found on PATH (Debian package " + package +
                            (program == "ssimulacra2" ? ", Debian 13 and newer)" : ")")};
}

Measure mean_over_frames(const FrameTool& tool, const fs::path& reference, const fs::path& clip,
                         int frames, int threads) {
  if (!program_exists(tool.program)) return missing(tool.program, "libjxl-devtools");
  double sum = 0;
  int failed = 0;
  std::vector<double> values(static_cast<size_t>(frames));
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(+ : failed)
  for (int frame = 0; frame < frames; ++frame) {
    if (interrupted()) continue;
    std::vector<std::string> arguments = {tool.program,
                                          (reference / frame_name("r", frame)).string(),
                                          (clip / frame_name("t", frame)).string()};
    arguments.insert(arguments.end(), tool.options.begin(), tool.options.end());
    const ProcessResult result = run_process(arguments);
    const std::optional<double> value = number_after(result.output, tool.label);
    if (result.exit_code != 0 || !value) {
      ++failed;
    } else {
      values[frame] = *value;
    }
  }
  check_interrupt();
  if (failed > 0) {
    return {std::nullopt, std::string(tool.program) + " failed on " + std::to_string(failed) +
                              " of " + std::to_string(frames) + " frames"};
  }
  for (const double value : values) sum += value;
  return {sum / frames, ""};
}

Measure vif(const fs::path& reference, const fs::path& clip, double fps) {
  if (!program_exists("ffmpeg")) return missing("ffmpeg", "ffmpeg");
  const std::string rate = std::to_string(fps);
  const ProcessResult result =
      run_process({"ffmpeg", "-nostdin", "-hide_banner", "-framerate", rate, "-i",
                   (clip / "t%04d.png").string(), "-framerate", rate, "-i",
                   (reference / "r%04d.png").string(), "-lavfi", "vif", "-f", "null", "-"});
  double sum = 0;
  for (int scale = 0; scale < 4; ++scale) {
    const std::optional<double> value =
        number_after(result.output, "VIF scale=" + std::to_string(scale) + " average:");
    if (result.exit_code != 0 || !value) {
      return {std::nullopt, "ffmpeg has no working vif filter (FFmpeg 4.4 or newer has it)"};
    }
    sum += *value / 4;
  }
  return {sum, ""};
}

}  // namespace

PerceptualTools::PerceptualTools(const Clip& reference, double fps, int threads)
    : frames_(reference.frames), fps_(fps), threads_(threads) {
  TemporaryDirectory dir;
  write_frames(dir.path(), "r", reference);
  dir_ = dir.release();
}

PerceptualTools::~PerceptualTools() {
  std::error_code ignored;
  fs::remove_all(dir_, ignored);
}

std::map<std::string, Measure> PerceptualTools::measure(const Clip& clip) const {
  const TemporaryDirectory dir;
  write_frames(dir.path(), "t", clip);
  std::map<std::string, Measure> measures;
  for (const FrameTool& tool : frame_tools()) {
    measures[tool.measure] = mean_over_frames(tool, dir_, dir.path(), frames_, threads_);
  }
  measures["vif"] = vif(dir_, dir.path(), fps_);
  return measures;
}

}  // namespace vca::tools
