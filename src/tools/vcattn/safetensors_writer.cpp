// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "tools/vcattn/atomic_file.hpp"
#include "tools/vcattn/safetensors.hpp"

namespace vca::tools {

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t at = 0;
  const auto bytes_of = [](const TensorToWrite& tensor) {
    uint64_t bytes = static_cast<uint64_t>(spec::dtype_bytes(tensor.dtype));
    for (int64_t extent : tensor.shape) bytes *= static_cast<uint64_t>(extent);
    return bytes;
  };
  for (const TensorToWrite& tensor : tensors) {
    const uint64_t bytes = bytes_of(tensor);
    header[tensor.name] = {{"dtype", dtype_to_safetensors(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t header_bytes = text.size();

  AtomicFile file(path);
  file.write(&header_bytes, sizeof header_bytes);
  file.write(text);
  for (const TensorToWrite& tensor : tensors) file.write(tensor.data, bytes_of(tensor));
  file.commit();
}

}  // namespace vca::tools
