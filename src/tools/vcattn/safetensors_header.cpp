// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "tools/vcattn/errors.hpp"

namespace vca::tools {
namespace {

using nlohmann::json;

// Every dtype of the format with whole bytes: other tensors of a file may have any of them, since
// their sizes are all that is needed to check the layout.
constexpr std::array<std::pair<std::string_view, uint64_t>, 16> kElementBytes = {{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E8M0", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"F64", 8},
    {"I64", 8},
    {"U64", 8},
}};

constexpr size_t kMaxDims = 16;  // far above any tensor, so that a message stays readable

// A header is an object of objects of lists: 3 levels. Values are printed by recursion,
// so that a deeper one, were it let in, could take the whole stack.
constexpr int kMaxDepth = 16;

// Long or hostile values are cut in messages.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 120) text = text.substr(0, 117) + "...";
  return text;
}

// The parser quotes the bytes that it did not like.
std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) c = '?';
  if (text.size() > 200) text = text.substr(0, 197) + "...";
  return text;
}

class HeaderParser {
 public:
  HeaderParser(uint64_t data_bytes, const std::string& file)
      : data_bytes_(data_bytes), file_(file) {}

  SafetensorsHeader parse(std::string_view text) {
    const json root = parse_json(text);
    if (!root.is_object()) {
      bad("the header is not a JSON object", shown(root), "an object that names tensors", "");
    }
    for (const auto& [name, value] : root.items()) {
      if (name == "__metadata__") {
        read_metadata(value);
      } else {
        header_.tensors.push_back(read_tensor(name, value));
      }
    }
    check_layout();
    return std::move(header_);
  }

 private:
  [[noreturn]] void bad(const std::string& what, const std::string& got, const std::string& allowed,
                        const std::string& hint) const {
    throw UserError(file_ + ": " + what, got, allowed,
                    hint.empty() ? "the file is damaged or was not written as safetensors" : hint);
  }

  json parse_json(std::string_view text) const {
    // The parser keeps the last of several equal keys, which would hide a tensor: look at each key.
    std::vector<std::set<std::string>> keys;
    std::string duplicate;
    const auto on_event = [&](int depth, json::parse_event_t event, json& parsed) {
      if (depth > kMaxDepth) {
        bad("the header is nested too deeply", "more than " + std::to_string(kMaxDepth) + " levels",
            "an object of tensors, each an object of a name and two lists", "");
      }
      if (event == json::parse_event_t::object_start) keys.emplace_back();
      if (event == json::parse_event_t::object_end) keys.pop_back();
      if (event == json::parse_event_t::key && duplicate.empty() &&
          !keys.back().insert(parsed.get<std::string>()).second) {
        duplicate = parsed.get<std::string>();
      }
      return true;
    };
    json root;
    try {
      root = json::parse(text.begin(), text.end(), on_event);
    } catch (const json::exception& e) {
      bad("the header is not JSON", printable(e.what()), "a JSON object in UTF-8", "");
    }
    if (!duplicate.empty()) {
      bad("the header has a key twice", shown_name(duplicate), "each name once", "");
    }
    return root;
  }

  void read_metadata(const json& value) {
    if (!value.is_object()) {
      bad("__metadata__ is not an object", shown(value), "an object of strings", "");
    }
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) {
        bad("__metadata__ entry " + shown_name(key) + " is not a string", shown(text), "a string",
            "");
      }
      header_.metadata[key] = text.get<std::string>();
    }
  }

  uint64_t read_unsigned(const json& value, const std::string& what) const {
    if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0)) {
      bad(what + " is not a whole number >= 0", shown(value), "0, 1, 2, ...", "");
    }
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      bad(what + " is too large", shown(value), "at most 2^63 - 1", "");
    }
    return number;
  }

  TensorInfo read_tensor(const std::string& name, const json& value) const {
    const std::string title = "tensor " + shown_name(name);
    if (!value.is_object()) {
      bad(title + " is not described by an object", shown(value),
          "{\"dtype\", \"shape\", \"data_offsets\"}", "");
    }
    for (const auto& [key, unused] : value.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        bad(title + " has an unknown key", shown_name(key), "dtype, shape, data_offsets", "");
      }
    }
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!value.contains(key)) {
        bad(title + " has no " + key, shown(value), "dtype, shape, data_offsets", "");
      }
    }

    TensorInfo info;
    info.name = name;
    const json& dtype = value["dtype"];
    if (!dtype.is_string()) bad(title + ": dtype is not a string", shown(dtype), "\"BF16\"", "");
    info.dtype = dtype.get<std::string>();
    const auto* known = std::find_if(kElementBytes.begin(), kElementBytes.end(),
                                     [&](const auto& entry) { return entry.first == info.dtype; });
    if (known == kElementBytes.end()) {
      bad(title + " has an unknown dtype", shown(dtype), "the safetensors dtypes of whole bytes",
          "");
    }

    const json& shape = value["shape"];
    if (!shape.is_array() || shape.size() > kMaxDims) {
      bad(title + ": shape is not a list of at most 16 extents", shown(shape), "[B, H, S, D]", "");
    }
    // The product of the non-zero extents must fit too: a zero may not hide an overflow.
    uint64_t bytes = known->second;
    bool empty = false;
    for (const json& extent : shape) {
      const uint64_t n = read_unsigned(extent, title + ": an extent of the shape");
      info.shape.push_back(static_cast<int64_t>(n));
      empty = empty || n == 0;
      if (n != 0 && bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / n) {
        bad(title + ": the shape overflows", shown(shape), "fewer than 2^63 bytes", "");
      }
      if (n != 0) bytes *= n;
    }
    if (empty) bytes = 0;

    const json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2) {
      bad(title + ": data_offsets is not a pair", shown(offsets), "[begin, end]", "");
    }
    info.begin = read_unsigned(offsets[0], title + ": a data offset");
    info.end = read_unsigned(offsets[1], title + ": a data offset");
    if (info.begin > info.end || info.end > data_bytes_) {
      bad(title + ": the data offsets are out of range", shown(offsets),
          "0 <= begin <= end <= " + std::to_string(data_bytes_) + " (bytes of data in the file)",
          "");
    }
    if (info.end - info.begin != bytes) {
      bad(title + ": the data offsets do not fit the shape",
          shown(offsets) + ", " + std::to_string(info.end - info.begin) + " bytes",
          std::to_string(bytes) + " bytes for " + info.dtype + " " + shape_text(info.shape), "");
    }
    return info;
  }

  // The tensors must cover the data exactly: no overlap, no hole, no rest.
  void check_layout() {
    std::sort(header_.tensors.begin(), header_.tensors.end(),
              [](const TensorInfo& a, const TensorInfo& b) {
                return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
              });
    uint64_t at = 0;
    std::string before = "the start of the data";
    for (const TensorInfo& tensor : header_.tensors) {
      if (tensor.begin != at) {
        const bool overlap = tensor.begin < at;
        bad("tensor " + shown_name(tensor.name) +
                (overlap ? " overlaps " : " leaves a hole after ") + before,
            "begins at byte " + std::to_string(tensor.begin), "byte " + std::to_string(at), "");
      }
      at = tensor.end;
      before = shown_name(tensor.name);
    }
    if (at != data_bytes_) {
      bad("bytes after the last tensor", std::to_string(data_bytes_) + " bytes of data",
          std::to_string(at) + " bytes, which is what the tensors of the header take", "");
    }
  }

  uint64_t data_bytes_;
  const std::string& file_;
  SafetensorsHeader header_;
};

}  // namespace

std::string shown_name(const std::string& name) { return shown(json(name)); }

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& file) {
  return HeaderParser(data_bytes, file).parse(json);
}

}  // namespace vca::tools
