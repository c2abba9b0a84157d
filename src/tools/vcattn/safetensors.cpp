// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "tools/vcattn/atomic_file.hpp"
#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/safetensors_header.hpp"

namespace vca::tools {

static_assert(std::endian::native == std::endian::little, "the file's bytes are used in place");

std::optional<spec::DType> dtype_from_safetensors(std::string_view name) {
  if (name == "BF16") return spec::DType::bf16;
  if (name == "F16") return spec::DType::fp16;
  if (name == "F32") return spec::DType::fp32;
  return std::nullopt;
}

const char* dtype_to_safetensors(spec::DType dtype) {
  switch (dtype) {
    case spec::DType::bf16:
      return "BF16";
    case spec::DType::fp16:
      return "F16";
    case spec::DType::fp32:
      return "F32";
  }
  return "invalid";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

struct SafetensorsFile::Impl {
  std::filesystem::path path;
  std::byte* map = nullptr;
  size_t map_bytes = 0;
  uint64_t data_begin = 0;
  SafetensorsHeader header;
  // Copies of tensors whose bytes do not start at a multiple of their element size, which the
  // format does not promise. Made on first use.
  mutable std::mutex mutex;
  mutable std::map<std::string, std::vector<std::max_align_t>> copies;

  ~Impl() {
    if (map != nullptr) munmap(map, map_bytes);
  }
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  const std::string file = path.string();
  const auto unreadable = [&](int error_number) {
    throw UserError("cannot read " + file, std::strerror(error_number),
                    "a safetensors file with tensors q, k, v", "");
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) unreadable(errno);
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    throw UserError("cannot read " + file, S_ISDIR(info.st_mode) ? "a directory" : "not a file",
                    "a regular file", "");
  }
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);
  const auto truncated = [&](const std::string& got, const std::string& allowed) {
    throw UserError(file + ": the file ends inside its header", got, allowed,
                    "the file is truncated or is not safetensors");
  };
  if (file_bytes < 8) {
    close(fd);
    truncated(std::to_string(file_bytes) + " bytes", "at least 8");
  }
  void* map = mmap(nullptr, file_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_error = errno;
  close(fd);
  if (map == MAP_FAILED) unreadable(map_error);
  impl_->map = static_cast<std::byte*>(map);
  impl_->map_bytes = file_bytes;

  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, impl_->map, 8);
  if (header_bytes > kMaxHeaderBytes) {
    throw UserError(file + ": the header is too long", std::to_string(header_bytes) + " bytes",
                    "at most " + std::to_string(kMaxHeaderBytes),
                    "the file is damaged or is not safetensors");
  }
  if (header_bytes > file_bytes - 8) {
    truncated(std::to_string(file_bytes) + " bytes in the file",
              std::to_string(header_bytes) + " bytes of header after the first 8");
  }
  impl_->data_begin = 8 + header_bytes;
  impl_->header = parse_safetensors_header(
      std::string_view(reinterpret_cast<const char*>(impl_->map) + 8, header_bytes),
      file_bytes - impl_->data_begin, file);
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::filesystem::path& SafetensorsFile::path() const { return impl_->path; }

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return impl_->header.metadata;
}

const std::vector<TensorInfo>& SafetensorsFile::tensors() const { return impl_->header.tensors; }

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  for (const TensorInfo& tensor : impl_->header.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

const TensorInfo& SafetensorsFile::require(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    std::string names;
    for (const TensorInfo& other : impl_->header.tensors) {
      if (names.size() > 160) {
        names += ", ...";
        break;
      }
      names += (names.empty() ? "" : ", ") + shown_name(other.name);
    }
    throw UserError(impl_->path.string() + ": tensor " + std::string(name) + " is missing",
                    names.empty() ? "no tensor at all" : "tensors " + names,
                    "a tensor named " + std::string(name), "rename the tensors of the dump");
  }
  if (!dtype_from_safetensors(tensor->dtype)) {
    throw UserError(impl_->path.string() + ": tensor " + tensor->name + " has an unsupported dtype",
                    tensor->dtype, "BF16, F16, F32", "convert the tensor before it is saved");
  }
  return *tensor;
}

const void* SafetensorsFile::data(const TensorInfo& tensor) const {
  if (tensor.begin == tensor.end) return nullptr;
  const std::byte* bytes = impl_->map + impl_->data_begin + tensor.begin;
  const auto dtype = dtype_from_safetensors(tensor.dtype);
  const uint64_t element = dtype ? static_cast<uint64_t>(spec::dtype_bytes(*dtype)) : 8;
  if (reinterpret_cast<uintptr_t>(bytes) % element == 0) return bytes;
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  auto& copy = impl_->copies[tensor.name];
  if (copy.empty()) {
    const uint64_t size = tensor.end - tensor.begin;
    copy.resize(size / sizeof(std::max_align_t) + 1);
    std::memcpy(copy.data(), bytes, size);
  }
  return copy.data();
}

namespace {

// All bits of the exponent field set.
template <class Bits>
int64_t first_with_exponent(const Bits* x, Bits exponent, int64_t elements) {
  // Blocks are summed up without a branch and searched only where one has a hit: one pass over
  // memory at its full speed. The lowest block with a hit wins, whatever the thread order.
  constexpr int64_t kChunk = 1 << 14;
  const int64_t chunks = (elements + kChunk - 1) / kChunk;
  int64_t first = std::numeric_limits<int64_t>::max();
#pragma omp parallel for schedule(static) reduction(min : first)
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t begin = c * kChunk, end = std::min(elements, begin + kChunk);
    unsigned any = 0;
    for (int64_t i = begin; i < end; ++i) any |= (x[i] & exponent) == exponent ? 1u : 0u;
    if (any == 0 || begin > first) continue;
    for (int64_t i = begin; i < end; ++i) {
      if ((x[i] & exponent) == exponent) {
        first = std::min(first, i);
        break;
      }
    }
  }
  return first == std::numeric_limits<int64_t>::max() ? -1 : first;
}

}  // namespace

int64_t first_non_finite(const void* data, spec::DType dtype, int64_t elements) {
  switch (dtype) {
    case spec::DType::bf16:
      return first_with_exponent<uint16_t>(static_cast<const uint16_t*>(data), 0x7F80, elements);
    case spec::DType::fp16:
      return first_with_exponent<uint16_t>(static_cast<const uint16_t*>(data), 0x7C00, elements);
    case spec::DType::fp32:
      return first_with_exponent<uint32_t>(static_cast<const uint32_t*>(data), 0x7F800000u,
                                           elements);
  }
  return -1;
}

}  // namespace vca::tools
