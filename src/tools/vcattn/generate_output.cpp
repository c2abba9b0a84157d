// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/generate_output.hpp"

#include <utility>

#include "tools/vcattn/atomic_file.hpp"

namespace vca::tools {

namespace fs = std::filesystem;

OutputSet::~OutputSet() {
  if (committed_) return;
  std::error_code ignored;
  for (const fs::path& path : made_files_) fs::remove(path, ignored);
  // Innermost first; a directory that somebody else has used since stays, because it is not empty.
  for (auto dir = made_directories_.rbegin(); dir != made_directories_.rend(); ++dir) {
    fs::remove(*dir, ignored);
  }
}

void OutputSet::make_directory(const fs::path& dir) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (fs::path at = dir; !at.empty() && !fs::exists(at, ignored); at = at.parent_path()) {
    missing.push_back(at);
    if (at == at.parent_path()) break;
  }
  made_directories_.insert(made_directories_.end(), missing.rbegin(), missing.rend());
  make_output_directory(dir);
}

void OutputSet::add(const fs::path& path, Bytes bytes) {
  files_.push_back({path, std::move(bytes)});
}

void OutputSet::add(const fs::path& path, std::string_view text) {
  files_.push_back({path, Bytes(text.begin(), text.end())});
}

void OutputSet::adopt(const fs::path& path) {
  std::error_code ignored;
  // A file that was there before is replaced whole or not at all; it is not ours to remove.
  if (!fs::exists(path, ignored)) made_files_.push_back(path);
}

void OutputSet::commit() {
  for (const File& file : files_) {
    if (!file.path.parent_path().empty()) make_directory(file.path.parent_path());
    adopt(file.path);
    AtomicFile out(file.path);
    out.write(file.bytes.data(), file.bytes.size());
    out.commit();
  }
  committed_ = true;
}

}  // namespace vca::tools
