// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/interrupt.hpp"

namespace vca::tools {
namespace {

// One write call may not take more on Linux; it would only return short.
constexpr size_t kMaxWrite = size_t{1} << 30;

constexpr const char* kAllowed = "a place that can be written and has room";

std::string hint_for(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free some space or choose another place";
    case ENOENT:
    case ENOTDIR:
      return "create the directory first, or mend the path";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a place that you may write to";
    default:
      return "choose another path";
  }
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& target) : target_(target) {
  if (target_.empty() || target_.filename().empty()) {
    throw UserError("cannot write the output file", "\"" + target_.string() + "\"",
                    "the path of a file", "");
  }
  struct stat info = {};
  if (stat(target_.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) {
      throw UserError("cannot write " + target_.string(), "a directory", "the path of a file", "");
    }
    aside_ = S_ISREG(info.st_mode);
  }
  if (!aside_) {
    part_ = target_;
    fd_ = open(part_.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) fail(errno, "open");
    return;
  }
  // Following a link keeps the link and replaces what it points at, as a plain write would.
  std::error_code ignored;
  const auto real = std::filesystem::canonical(target_, ignored);
  if (!ignored) target_ = real;
  for (int attempt = 0; fd_ < 0 && attempt < 100; ++attempt) {
    part_ = target_;
    part_ += ".part-" + std::to_string(getpid()) + "-" + std::to_string(attempt);
    slot_ = remember_partial_file(part_.string());
    fd_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) break;
    const int error_number = errno;
    forget_partial_file(slot_);
    slot_ = -1;
    if (error_number != EEXIST) fail(error_number, "create");
  }
  if (fd_ < 0) fail(EEXIST, "create");
}

AtomicFile::~AtomicFile() {
  if (!done_) discard();
}

void AtomicFile::discard() noexcept {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  if (aside_ && !part_.empty()) unlink(part_.c_str());
  forget_partial_file(slot_);
  slot_ = -1;
  done_ = true;
}

void AtomicFile::fail(int error_number, const char* doing) {
  // Not when the part could not be created: its name may belong to somebody else.
  if (fd_ >= 0) discard();
  done_ = true;
  throw UserError("cannot " + std::string(doing) + " " + target_.string(),
                  std::strerror(error_number), kAllowed, hint_for(error_number));
}

void AtomicFile::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, from, std::min(bytes, kMaxWrite));
    if (n < 0) {
      if (errno == EINTR) continue;
      fail(errno, "write");
    }
    from += n;
    bytes -= static_cast<size_t>(n);
  }
}

void AtomicFile::commit() {
  check_interrupt();  // a file that nobody waits for any more
  // Pipes and character devices cannot be synced; that is no failure.
  if (fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) fail(errno, "write");
  const int fd = fd_;
  fd_ = -1;
  if (close(fd) != 0) {
    const int error_number = errno;
    if (aside_) unlink(part_.c_str());
    fail(error_number, "write");
  }
  if (aside_ && rename(part_.c_str(), target_.c_str()) != 0) {
    const int error_number = errno;
    unlink(part_.c_str());
    fail(error_number, "rename");
  }
  forget_partial_file(slot_);
  slot_ = -1;
  done_ = true;
}

void write_file_atomically(const std::filesystem::path& target, std::string_view text) {
  AtomicFile file(target);
  file.write(text);
  file.commit();
}

void check_writable(const std::filesystem::path& target) {
  struct stat info = {};
  if (stat(target.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    // Opening a named pipe waits for its reader, and closing it ends what the reader sees.
    if (access(target.c_str(), W_OK) == 0) return;
    throw UserError("cannot write " + target.string(), std::strerror(errno), kAllowed,
                    hint_for(errno));
  }
  AtomicFile probe(target);
}

void make_output_directory(const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error || !std::filesystem::is_directory(dir, error)) {
    throw UserError("cannot create the directory " + dir.string(),
                    error ? error.message() : "something else has that name",
                    "a directory that exists or can be made", "choose another path");
  }
}

}  // namespace vca::tools
