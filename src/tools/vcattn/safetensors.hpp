// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes little-endian header length, a JSON header that names each
// tensor's dtype, shape and byte range, then the bytes. The reader is strict: a file is either
// exactly what its header says or it is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/problem.hpp"

namespace vca::tools {

// More than any real model needs; a larger length is a damaged or hostile file.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct TensorInfo {
  std::string name;
  std::string dtype;  // as written: "BF16", "I64", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, relative to the end of the header

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t extent : shape) n *= extent;
    return n;
  }
};

// "BF16", "F16", "F32"; nullopt for the formats that this project does not read.
std::optional<spec::DType> dtype_from_safetensors(std::string_view name);
const char* dtype_to_safetensors(spec::DType dtype);

// "[1, 8, 4096, 128]"
std::string shape_text(const std::vector<int64_t>& shape);

class SafetensorsFile {
 public:
  // Maps the file and checks the whole header: UserError on anything that the format forbids.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::filesystem::path& path() const;
  const std::map<std::string, std::string>& metadata() const;
  const std::vector<TensorInfo>& tensors() const;  // by byte offset

  const TensorInfo* find(std::string_view name) const;  // nullptr when absent

  // The tensor, which must exist and be BF16, F16 or F32; else UserError.
  const TensorInfo& require(std::string_view name) const;

  // Bytes of a tensor of this file, aligned for its element type; valid as long as this object.
  // NULL when it has no element.
  const void* data(const TensorInfo& tensor) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// First element that is NaN or Inf, counted in storage order; -1 when all are finite.
int64_t first_non_finite(const void* data, spec::DType dtype, int64_t elements);

// ---- writing ----

struct TensorToWrite {
  std::string name;
  spec::DType dtype;
  std::vector<int64_t> shape;
  const void* data;  // contiguous
};

// Atomic. Tensors keep their order; the data starts at a multiple of 8 bytes.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace vca::tools
