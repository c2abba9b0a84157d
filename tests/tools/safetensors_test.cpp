// SPDX-License-Identifier: Apache-2.0
// The reader refuses what is not exactly what its header says; the writer's files come back equal.
#include "tools/vcattn/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tools/vcattn/errors.hpp"

namespace vca::tools {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest() {
    std::string pattern = (fs::temp_directory_path() / "vcattn-test-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  ~SafetensorsTest() override { fs::remove_all(dir_); }

  fs::path path(const char* name = "t.safetensors") const { return dir_ / name; }

  // A file of a header and zero bytes of data; `announced` < 0: the true header length.
  fs::path raw(const std::string& header, size_t data_bytes, int64_t announced = -1) const {
    const auto length = announced < 0 ? header.size() : static_cast<uint64_t>(announced);
    std::ofstream file(path(), std::ios::binary);
    char bytes[8];
    std::memcpy(bytes, &length, 8);
    file.write(bytes, 8);
    file << header << std::string(data_bytes, '\0');
    return path();
  }

  static std::string refusal(const fs::path& file) {
    try {
      const SafetensorsFile opened(file);
    } catch (const UserError& e) {
      return e.what();
    }
    return "not refused";
  }
  std::string refusal(const std::string& header, size_t data_bytes, int64_t announced = -1) const {
    return refusal(raw(header, data_bytes, announced));
  }

  fs::path dir_;
};

std::string entry(const char* name, const char* dtype, const char* shape, const char* offsets) {
  return std::string("\"") + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST_F(SafetensorsTest, WrittenFileComesBack) {
  const std::vector<float> a = {1, -2, 3.5f, 0, 1e-30f, -1e30f};
  const std::vector<uint16_t> b = {0x3F80, 0x4000, 0xC000};
  write_safetensors(path(),
                    {{"a", spec::DType::fp32, {2, 3}, a.data()},
                     {"empty", spec::DType::bf16, {0, 7}, nullptr},
                     {"b", spec::DType::bf16, {3}, b.data()}},
                    {{"note", "a \"quoted\" text\n"}});
  const SafetensorsFile file(path());
  EXPECT_EQ(file.metadata().at("note"), "a \"quoted\" text\n");
  ASSERT_EQ(file.tensors().size(), 3u);
  const TensorInfo& read = file.require("a");
  EXPECT_EQ(read.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(file.data(read), a.data(), a.size() * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(file.data(file.require("b")), b.data(), 6), 0);
  EXPECT_EQ(file.data(file.require("empty")), nullptr);
  EXPECT_EQ(file.require("empty").elements(), 0);
  EXPECT_EQ(file.find("c"), nullptr);
  // Nothing but the file itself stays in the directory.
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), {}), 1);
}

TEST_F(SafetensorsTest, DataStartsAtAMultipleOfEight) {
  const float x = 1;
  write_safetensors(path(), {{"x", spec::DType::fp32, {1}, &x}}, {});
  std::ifstream in(path(), std::ios::binary);
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), 8);
  EXPECT_EQ(length % 8, 0u);
}

// The format promises no alignment: an odd header length must not give a misaligned pointer.
TEST_F(SafetensorsTest, MisalignedDataIsCopied) {
  std::string header = "{" + entry("x", "F32", "[2]", "[0,8]") + "}";
  while ((8 + header.size()) % 4 != 1) header += " ";
  const SafetensorsFile file(raw(header, 8));
  const void* data = file.data(file.require("x"));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % alignof(float), 0u);
  EXPECT_EQ(file.data(file.require("x")), data);
  float values[2] = {1, 1};
  std::memcpy(values, data, sizeof values);
  EXPECT_EQ(values[0], 0.0f);
  EXPECT_EQ(values[1], 0.0f);
}

TEST_F(SafetensorsTest, RefusesWhatIsNoFile) {
  EXPECT_THAT(refusal(dir_ / "absent"), HasSubstr("No such file"));
  EXPECT_THAT(refusal(dir_), HasSubstr("a directory"));
}

TEST_F(SafetensorsTest, RefusesTruncatedHeaders) {
  std::ofstream(path(), std::ios::binary) << "1234567";
  EXPECT_THAT(refusal(path()), AllOf(HasSubstr("ends inside its header"), HasSubstr("7 bytes")));
  EXPECT_THAT(refusal("{}", 0, 3), HasSubstr("ends inside its header"));
  EXPECT_THAT(refusal("", 0, 0), HasSubstr("not JSON"));
}

TEST_F(SafetensorsTest, RefusesOversizedHeaders) {
  EXPECT_THAT(refusal("{}", 0, 100'000'001), HasSubstr("header is too long"));
  EXPECT_THAT(refusal("{}", 0, std::numeric_limits<int64_t>::max()),
              HasSubstr("header is too long"));
}

TEST_F(SafetensorsTest, RefusesWhatIsNotJson) {
  EXPECT_THAT(refusal("{\"a\":", 0), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("{} x", 0), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("{\"\xFF\":1}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("[1]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("{\"a\":3}", 0), HasSubstr("not described by an object"));
  // Deep nesting must not exhaust the stack.
  EXPECT_THAT(refusal(std::string(1'000'000, '['), 0), HasSubstr("nested too deeply"));
}

TEST_F(SafetensorsTest, RefusesDuplicateKeys) {
  const std::string one = entry("a", "F32", "[1]", "[0,4]");
  EXPECT_THAT(refusal("{" + one + "," + one + "}", 4),
              AllOf(HasSubstr("a key twice"), HasSubstr("\"a\"")));
  EXPECT_THAT(refusal("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],"
                      "\"data_offsets\":[0,4]}}",
                      4),
              HasSubstr("a key twice"));
}

TEST_F(SafetensorsTest, RefusesBadLayouts) {
  const auto two = [&](const char* first, const char* second, size_t bytes) {
    return refusal(
        "{" + entry("a", "F32", "[2]", first) + "," + entry("b", "F32", "[2]", second) + "}",
        bytes);
  };
  EXPECT_EQ(two("[0,8]", "[8,16]", 16), "not refused");
  EXPECT_EQ(two("[8,16]", "[0,8]", 16), "not refused");
  EXPECT_THAT(two("[0,8]", "[4,12]", 12), HasSubstr("overlaps"));
  EXPECT_THAT(two("[0,8]", "[0,8]", 8), HasSubstr("overlaps"));
  EXPECT_THAT(two("[0,8]", "[12,20]", 20), HasSubstr("leaves a hole"));
  EXPECT_THAT(two("[4,12]", "[12,20]", 20), HasSubstr("leaves a hole"));
  EXPECT_THAT(two("[0,8]", "[8,16]", 15), HasSubstr("out of range"));
  EXPECT_THAT(two("[0,8]", "[8,16]", 17), HasSubstr("bytes after the last tensor"));
  EXPECT_THAT(two("[0,8]", "[16,8]", 16), HasSubstr("out of range"));
  EXPECT_THAT(two("[0,8]", "[-8,16]", 16), HasSubstr("not a whole number"));
  EXPECT_THAT(two("[0,8]", "[8,18446744073709551615]", 16), HasSubstr("too large"));
  EXPECT_THAT(two("[0,8]", "[8,16.0]", 16), HasSubstr("not a whole number"));
  EXPECT_THAT(two("[0,8]", "[8]", 16), HasSubstr("not a pair"));
  EXPECT_THAT(two("[0,8]", "[8,12]", 12), HasSubstr("do not fit the shape"));
}

TEST_F(SafetensorsTest, RefusesBadShapes) {
  const auto shape = [&](const char* text) {
    return refusal("{" + entry("a", "F32", text, "[0,4]") + "}", 4);
  };
  EXPECT_EQ(shape("[1,1]"), "not refused");
  EXPECT_EQ(shape("[]"), "not refused");
  EXPECT_THAT(shape("[-1]"), HasSubstr("not a whole number >= 0"));
  EXPECT_THAT(shape("[1.5]"), HasSubstr("not a whole number >= 0"));
  EXPECT_THAT(shape("[true]"), HasSubstr("not a whole number >= 0"));
  EXPECT_THAT(shape("\"1\""), HasSubstr("shape is not a list"));
  // 2^62 elements of four bytes; 2^32 * 2^32; and an overflow behind a zero.
  EXPECT_THAT(shape("[4611686018427387904]"), HasSubstr("overflows"));
  EXPECT_THAT(shape("[4294967296,4294967296]"), HasSubstr("overflows"));
  EXPECT_THAT(shape("[0,9223372036854775807,9223372036854775807]"), HasSubstr("overflows"));
  EXPECT_THAT(shape("[99999999999999999999]"), HasSubstr("not a whole number >= 0"));
  EXPECT_THAT(shape("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"), HasSubstr("at most 16"));
}

TEST_F(SafetensorsTest, RefusesBadEntries) {
  EXPECT_THAT(refusal("{" + entry("a", "F31", "[1]", "[0,4]") + "}", 4),
              HasSubstr("unknown dtype"));
  EXPECT_THAT(refusal("{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4),
              HasSubstr("dtype is not a string"));
  EXPECT_THAT(refusal("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4),
              HasSubstr("has no dtype"));
  EXPECT_THAT(
      refusal("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4),
      HasSubstr("unknown key"));
  EXPECT_THAT(refusal("{\"__metadata__\":{\"a\":1}}", 0), HasSubstr("not a string"));
  EXPECT_THAT(refusal("{\"__metadata__\":[]}", 0), HasSubstr("not an object"));
}

TEST_F(SafetensorsTest, RequireNamesWhatIsThere) {
  const SafetensorsFile file(raw(
      "{" + entry("key", "F32", "[1]", "[0,4]") + "," + entry("n", "I64", "[1]", "[4,12]") + "}",
      12));
  try {
    file.require("q");
    ADD_FAILURE();
  } catch (const UserError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("tensor q is missing"), HasSubstr(R"("key", "n")")));
  }
  // Other formats may stand in the file, but cannot be asked for.
  try {
    file.require("n");
    ADD_FAILURE();
  } catch (const UserError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("unsupported dtype"), HasSubstr("BF16, F16, F32")));
  }
}

TEST_F(SafetensorsTest, RefusalsOfHostileNamesStayPrintable) {
  const std::string name(10'000, 'x');
  const std::string text =
      refusal("{" + entry((name + "\\u0007").c_str(), "F31", "[1]", "[0,4]") + "}", 4);
  EXPECT_LT(text.size(), 600u);
  EXPECT_EQ(text.find('\a'), std::string::npos);
}

TEST(FirstNonFinite, FindsTheFirst) {
  // Longer than one chunk of the search.
  std::vector<float> x(100'000, 1.0f);
  EXPECT_EQ(first_non_finite(x.data(), spec::DType::fp32, 100'000), -1);
  x[99'999] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_non_finite(x.data(), spec::DType::fp32, 100'000), 99'999);
  EXPECT_EQ(first_non_finite(x.data(), spec::DType::fp32, 99'999), -1);
  x[40'000] = -std::numeric_limits<float>::quiet_NaN();
  x[40'001] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(first_non_finite(x.data(), spec::DType::fp32, 100'000), 40'000);
  x[7] = std::numeric_limits<float>::max();
  EXPECT_EQ(first_non_finite(x.data(), spec::DType::fp32, 100'000), 40'000);
}

TEST(FirstNonFinite, SixteenBitFormats) {
  std::vector<uint16_t> x = {0x0000, 0x7F7F, 0xFF7F, 0x7F80, 0x7FC0};
  EXPECT_EQ(first_non_finite(x.data(), spec::DType::bf16, 5), 3);
  EXPECT_EQ(first_non_finite(x.data(), spec::DType::bf16, 3), -1);
  x = {0x7BFF, 0xFBFF, 0x03FF, 0xFC00};
  EXPECT_EQ(first_non_finite(x.data(), spec::DType::fp16, 4), 3);
  EXPECT_EQ(first_non_finite(nullptr, spec::DType::fp16, 0), -1);
}

}  // namespace
}  // namespace vca::tools
