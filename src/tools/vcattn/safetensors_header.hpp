// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file as text: checked and turned into a list. Internal to the reader.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tools/vcattn/safetensors.hpp"

namespace vca::tools {

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // by byte offset
  std::map<std::string, std::string> metadata;
};

// `data_bytes`: what follows the header in the file. `file`: for messages. UserError when wrong.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& file);

// A tensor's name as messages show it: quoted, cut, without control characters.
std::string shown_name(const std::string& name);

}  // namespace vca::tools
