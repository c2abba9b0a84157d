// SPDX-License-Identifier: Apache-2.0
// The files of a run: all of them appear, or none.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tools/vcattn/media.hpp"

namespace vca::tools {

class OutputSet {
 public:
  OutputSet() = default;
  // Without commit: removes the files and directories that this run made.
  ~OutputSet();
  OutputSet(const OutputSet&) = delete;
  OutputSet& operator=(const OutputSet&) = delete;

  // Creates the directory where it is missing.
  void make_directory(const std::filesystem::path& dir);

  // Kept in memory until commit.
  void add(const std::filesystem::path& path, Bytes bytes);
  void add(const std::filesystem::path& path, std::string_view text);

  // A file that is about to be written (atomically) during the run, too large to keep in memory.
  void adopt(const std::filesystem::path& path);

  void commit();

 private:
  struct File {
    std::filesystem::path path;
    Bytes bytes;
  };
  std::vector<File> files_;
  std::vector<std::filesystem::path> made_files_;
  std::vector<std::filesystem::path> made_directories_;
  bool committed_ = false;
};

}  // namespace vca::tools
