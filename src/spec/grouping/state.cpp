// SPDX-License-Identifier: Apache-2.0
//
// HeadState as bytes: "VCAG", version, fields little endian, FNV-1a 64 of all that came before.
#include <bit>
#include <cstring>
#include <type_traits>

#include "spec/grouping/grouping.hpp"

namespace vca::spec {
namespace {

constexpr uint32_t kMagic = 0x47414356;  // "VCAG"
constexpr uint32_t kVersion = 3;

uint64_t fnv1a(std::span<const uint8_t> bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

class Writer {
 public:
  void put(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out.push_back(static_cast<uint8_t>(value >> (8 * i)));
  }
  std::vector<uint8_t> out;
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> blob) : blob_(blob) {}

  uint64_t get(int bytes) {
    if (at_ + bytes > blob_.size()) {
      ok = false;
      return 0;
    }
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(blob_[at_++]) << (8 * i);
    return value;
  }

  // A count of items still to come; refused when the blob cannot hold them.
  size_t count(size_t item_bytes) {
    const uint64_t n = get(8);
    if (n > (blob_.size() - at_) / item_bytes) ok = false;
    return ok ? static_cast<size_t>(n) : 0;
  }

  bool at_end() const { return at_ == blob_.size(); }
  bool ok = true;

 private:
  std::span<const uint8_t> blob_;
  size_t at_ = 0;
};

}  // namespace

std::vector<uint8_t> HeadState::serialise() const {
  Writer w;
  w.put(kMagic, 4);
  w.put(kVersion, 4);
  w.put(static_cast<uint64_t>(used), 4);
  w.put(static_cast<uint64_t>(head_dim), 4);
  w.put(std::bit_cast<uint64_t>(f_watched), 8);
  w.put(static_cast<uint64_t>(step), 8);
  int width = 4;  // token indices rarely need more
  for (const auto& order : order_by_segment)
    for (const int64_t token : order)
      if (static_cast<uint64_t>(token) > 0xFFFFFFFFu) width = 8;
  w.put(width, 4);
  w.put(order_by_segment.size(), 8);
  for (const auto& order : order_by_segment) {
    w.put(order.size(), 8);
    for (const int64_t token : order) w.put(static_cast<uint64_t>(token), width);
  }
  w.put(fnv1a(w.out), 8);
  return std::move(w.out);
}

bool HeadState::deserialise(std::span<const uint8_t> blob, HeadState* out) {
  constexpr size_t kChecksum = 8;
  if (blob.size() < kChecksum) return false;
  const auto body = blob.first(blob.size() - kChecksum);
  if (Reader(blob.last(kChecksum)).get(8) != fnv1a(body)) return false;
  Reader r(body);
  if (r.get(4) != kMagic || r.get(4) != kVersion) return false;
  HeadState state;
  const uint64_t used = r.get(4);
  state.used = static_cast<Grouping>(used);
  state.head_dim = static_cast<int>(r.get(4));
  state.f_watched = std::bit_cast<double>(r.get(8));
  state.step = static_cast<int64_t>(r.get(8));
  const int width = static_cast<int>(r.get(4));
  if (used > static_cast<uint64_t>(Grouping::automatic) || state.head_dim < 0 ||
      state.head_dim > 128 || (width != 4 && width != 8))
    return false;
  state.order_by_segment.resize(r.count(8));
  for (auto& order : state.order_by_segment) {
    order.resize(r.count(width));
    for (int64_t& token : order) token = static_cast<int64_t>(r.get(width));
  }
  if (!r.ok || !r.at_end()) return false;
  *out = std::move(state);
  return true;
}

}  // namespace vca::spec
