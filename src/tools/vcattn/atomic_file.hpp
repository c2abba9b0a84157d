// SPDX-License-Identifier: Apache-2.0
// Output files that appear complete or not at all: written aside in the same directory, synced,
// renamed over the target. Any failure, an interrupt included, removes the part.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace vca::tools {

class AtomicFile {
 public:
  // Opens the file aside; UserError when the directory is missing or not writable. A target that
  // exists and is not a regular file (a pipe, a device) is written directly: renaming would
  // replace it.
  explicit AtomicFile(const std::filesystem::path& target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // UserError naming the target when the disk is full or the write fails otherwise.
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }

  // Sync and rename; throws Interrupted instead when a signal has arrived. Without it the
  // destructor discards everything.
  void commit();

  // Where the part lives until commit (for libraries that write by name); after such writes the
  // descriptor here is not used.
  const std::filesystem::path& part_path() const { return part_; }

 private:
  [[noreturn]] void fail(int error_number, const char* doing);
  void discard() noexcept;

  std::filesystem::path target_, part_;
  int fd_ = -1;
  int slot_ = -1;
  bool aside_ = true;
  bool done_ = false;
};

// Whole text at once.
void write_file_atomically(const std::filesystem::path& target, std::string_view text);

// UserError unless a file could be created at `target` now; leaves nothing behind. Called before
// long work, so that a typo in a path does not cost an hour.
void check_writable(const std::filesystem::path& target);

// Creates the directory and its parents; UserError when that fails or something else has the name.
void make_output_directory(const std::filesystem::path& dir);

}  // namespace vca::tools
