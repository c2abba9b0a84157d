// SPDX-License-Identifier: Apache-2.0
// Output files appear complete or not at all.
#include "tools/vcattn/atomic_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tools/vcattn/errors.hpp"

namespace vca::tools {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest() {
    std::string pattern = (fs::temp_directory_path() / "vcattn-test-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  ~AtomicFileTest() override { fs::remove_all(dir_); }

  static std::string content(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  auto files() const { return std::distance(fs::directory_iterator(dir_), {}); }

  fs::path dir_;
};

TEST_F(AtomicFileTest, AppearsWithCommitOnly) {
  const fs::path path = dir_ / "a";
  {
    AtomicFile file(path);
    file.write("half");
    EXPECT_FALSE(fs::exists(path));
    EXPECT_EQ(file.part_path().parent_path(), fs::canonical(dir_));
  }
  EXPECT_EQ(files(), 0);
  write_file_atomically(path, "whole");
  EXPECT_EQ(content(path), "whole");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, AFailureKeepsTheOldFile) {
  const fs::path path = dir_ / "a";
  write_file_atomically(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
  }
  EXPECT_EQ(content(path), "old");
  write_file_atomically(path, "new");
  EXPECT_EQ(content(path), "new");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, FollowsLinks) {
  write_file_atomically(dir_ / "real", "old");
  fs::create_symlink(dir_ / "real", dir_ / "link");
  write_file_atomically(dir_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  EXPECT_EQ(content(dir_ / "real"), "new");
}

TEST_F(AtomicFileTest, RefusesWhatCannotBeWritten) {
  const auto text = [](const fs::path& path) -> std::string {
    try {
      check_writable(path);
    } catch (const UserError& e) {
      return e.what();
    }
    return "not refused";
  };
  EXPECT_THAT(text(dir_ / "absent" / "a"), HasSubstr("No such file or directory"));
  EXPECT_THAT(text(dir_), HasSubstr("a directory"));
  EXPECT_THAT(text(""), HasSubstr("the path of a file"));
  EXPECT_EQ(text(dir_ / "fine"), "not refused");
  EXPECT_EQ(files(), 0);
}

// A device is written, never replaced by a file.
TEST_F(AtomicFileTest, FullDevice) {
  if (!fs::is_character_file("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  try {
    write_file_atomically("/dev/full", "text");
    ADD_FAILURE() << "writing to a full device did not fail";
  } catch (const UserError& e) {
    EXPECT_THAT(e.what(), HasSubstr("No space left on device"));
  }
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(AtomicFileTest, Directories) {
  make_output_directory(dir_ / "a" / "b");
  EXPECT_TRUE(fs::is_directory(dir_ / "a" / "b"));
  make_output_directory(dir_ / "a" / "b");
  write_file_atomically(dir_ / "file", "");
  EXPECT_THROW(make_output_directory(dir_ / "file"), UserError);
  EXPECT_THROW(make_output_directory(dir_ / "file" / "below"), UserError);
}

}  // namespace
}  // namespace vca::tools
