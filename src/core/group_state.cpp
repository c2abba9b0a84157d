// SPDX-License-Identifier: Apache-2.0
#include "core/group_state.hpp"

#include <bit>
#include <cstring>
#include <span>
#include <string>

#include "core/checked.hpp"
#include "core/hash.hpp"
#include "core/status.hpp"
#include "core/workspace.hpp"

namespace vca::core {

struct GroupState::Header {
  uint64_t magic;
  uint32_t version;
  uint32_t zero;
  uint64_t problem;  // hash of what the slots depend on
  uint64_t slots;
  uint64_t bytes;
  uint64_t table_checksum;  // of the offsets behind the header
  uint64_t checksum;        // of the fields above
};

struct GroupState::SlotHeader {
  uint64_t blob_bytes;  // 0: nothing stored
  int64_t last_call_step;
  double f_at_grouping;
  double f_last;
  uint64_t checksum;  // of the fields above
};

namespace {

constexpr uint64_t kMagic = 0x3154535041434156u;  // "VACAPST1"
constexpr uint32_t kVersion = 2;
constexpr char kBlobMagic[8] = {'V', 'C', 'A', 'S', 'T', 'A', 'T', 'E'};

[[noreturn]] void state_error(std::string what, std::string got, std::string allowed) {
  fail(VCA_ERR_STATE, {std::move(what), std::move(got), std::move(allowed),
                       "call vca_group_state_init() for this descriptor, or "
                       "vca_group_state_reset() to begin anew"});
}

uint64_t state_hash(const Request& request) {
  const spec::Problem& p = request.problem;
  Hash h;
  for (const int64_t x : {p.batches, p.h_kv, p.s_kv, int64_t{p.d}}) h.add(x);
  h.add(static_cast<int64_t>(p.grouping));
  h.add(int64_t{p.recipe->v_smooth()});
  for (size_t i = 0; i < p.subs.size(); ++i) {
    h.add(p.subs[i].q_begin);
    h.add(request.rooms[i].tokens);
    h.add(request.rooms[i].segments);
    h.add(request.rooms[i].blocks);
  }
  return h.value();
}

int64_t slot_count(const Request& request) {
  return request.problem.recipe->v_smooth() ? unit_count(request) : 0;
}

// Largest serialised HeadState: its fields and 4 bytes a token.
int64_t blob_room(const StateRoom& room) {
  constexpr int64_t kFields = 128;
  return kFields + 16 * room.segments + 4 * room.tokens;
}

template <class T>
uint64_t checksum_of(const T& with_checksum_last) {
  Hash h;
  h.add_bytes(&with_checksum_last, sizeof(T) - sizeof(uint64_t));
  return h.value();
}

uint64_t table_checksum(const uint8_t* table, uint64_t slots) {
  Hash h;
  h.add_bytes(table, (slots + 1) * sizeof(uint64_t));
  return h.value();
}

// Little-endian bytes, whatever the host.
class Writer {
 public:
  void put(uint64_t x) {
    for (int i = 0; i < 8; ++i) out.push_back(static_cast<uint8_t>(x >> (8 * i)));
  }
  void put_bytes(const uint8_t* data, size_t n) { out.insert(out.end(), data, data + n); }
  std::vector<uint8_t> out;
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> blob) : blob_(blob) {}
  uint64_t get() {
    const std::span<const uint8_t> bytes = get_bytes(8);
    uint64_t x = 0;
    for (size_t i = 0; i < 8; ++i) x |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    return x;
  }
  std::span<const uint8_t> get_bytes(uint64_t n) {
    if (n > blob_.size()) state_error("state blob is truncated", "", "");
    const std::span<const uint8_t> bytes = blob_.first(n);
    blob_ = blob_.subspan(n);
    return bytes;
  }
  bool at_end() const { return blob_.empty(); }

 private:
  std::span<const uint8_t> blob_;
};

}  // namespace

int64_t GroupState::bytes_needed(const Request& request) {
  const int64_t slots = slot_count(request);
  int64_t bytes = static_cast<int64_t>(sizeof(Header)) +
                  checked_mul(slots + 1, int64_t{sizeof(uint64_t)}, "group state");
  if (slots > 0) {
    for (const StateRoom& room : request.rooms) {
      const int64_t slot = round_up(static_cast<int64_t>(sizeof(SlotHeader)) + blob_room(room), 8);
      bytes =
          checked_add(bytes, checked_mul(slot, request.problem.h_kv, "group state"), "group state");
    }
  }
  return bytes;
}

void GroupState::init(const Request& request, void* state, size_t bytes) {
  const int64_t need = bytes_needed(request);
  if (state == nullptr || bytes < static_cast<size_t>(need)) {
    fail(VCA_ERR_STATE, {"group state buffer is missing or too small",
                         state == nullptr ? "NULL" : std::to_string(bytes) + " bytes",
                         to_text(need) + " bytes or more", "ask vca_group_state_bytes()"});
  }
  if (reinterpret_cast<uintptr_t>(state) % 8 != 0) {
    fail(VCA_ERR_STATE, {"group state buffer is not aligned", "", "8-byte alignment",
                         "use malloc() or aligned_alloc()"});
  }
  auto* base = static_cast<uint8_t*>(state);
  Header h{};
  h.magic = kMagic;
  h.version = kVersion;
  h.problem = state_hash(request);
  h.slots = static_cast<uint64_t>(slot_count(request));
  h.bytes = static_cast<uint64_t>(need);
  uint64_t at = sizeof(Header) + (h.slots + 1) * sizeof(uint64_t);
  uint8_t* table = base + sizeof(Header);
  const auto put_offset = [&] {
    std::memcpy(table, &at, sizeof(at));
    table += sizeof(at);
  };
  put_offset();
  if (h.slots > 0) {
    for (const StateRoom& room : request.rooms)
      for (int64_t head = 0; head < request.problem.h_kv; ++head) {
        at += static_cast<uint64_t>(
            round_up(static_cast<int64_t>(sizeof(SlotHeader)) + blob_room(room), 8));
        put_offset();
      }
  }
  h.table_checksum = table_checksum(base + sizeof(Header), h.slots);
  h.checksum = checksum_of(h);
  std::memcpy(base, &h, sizeof(h));
  GroupState(nullptr, state).reset();
}

GroupState::GroupState(const Request* request, void* state, size_t bytes)
    : base_(static_cast<uint8_t*>(state)) {
  if (state == nullptr) state_error("group state is NULL", "NULL", "");
  if (reinterpret_cast<uintptr_t>(state) % 8 != 0)
    state_error("group state buffer is not aligned", "", "8-byte alignment");
  const auto require = [bytes](uint64_t need) {
    if (bytes >= need) return;
    state_error("group state buffer is shorter than its content", std::to_string(bytes) + " bytes",
                std::to_string(need) + " bytes or more");
  };
  require(sizeof(Header));
  const Header h = header();
  const bool intact = h.magic == kMagic && h.checksum == checksum_of(h);
  if (intact) require(h.bytes);
  if (!intact || h.table_checksum != table_checksum(base_ + sizeof(Header), h.slots))
    state_error("group state is not initialised or damaged", "no valid header", "");
  if (h.version != kVersion)
    state_error("group state has another version", std::to_string(h.version),
                std::to_string(kVersion));
  if (request != nullptr && h.problem != state_hash(*request)) {
    state_error("group state belongs to another problem",
                "a state of other shapes, segments or grouping",
                "the shapes, segments and grouping it was made for");
  }
}

GroupState::Header GroupState::header() const {
  Header h;
  std::memcpy(&h, base_, sizeof(h));
  return h;
}

int64_t GroupState::slots() const { return static_cast<int64_t>(header().slots); }

uint8_t* GroupState::slot_at(int64_t slot) const {
  uint64_t offset = 0;
  std::memcpy(&offset, base_ + sizeof(Header) + static_cast<size_t>(slot) * sizeof(offset),
              sizeof(offset));
  return base_ + offset;
}

int64_t GroupState::slot_bytes(int64_t slot) const { return slot_at(slot + 1) - slot_at(slot); }

void GroupState::reset() {
  for (int64_t slot = 0; slot < slots(); ++slot) {
    SlotHeader s{};
    s.last_call_step = -1;
    write_slot(slot, s, nullptr);
  }
}

void GroupState::write_slot(int64_t slot, SlotHeader s, const uint8_t* blob) {
  s.checksum = checksum_of(s);
  uint8_t* const at = slot_at(slot);
  std::memcpy(at, &s, sizeof(s));
  if (blob != nullptr) std::memcpy(at + sizeof(s), blob, s.blob_bytes);
}

HeadHistory GroupState::load(int64_t slot, spec::HeadState* head) const {
  const uint8_t* const at = slot_at(slot);
  SlotHeader s;
  std::memcpy(&s, at, sizeof(s));
  const auto room = static_cast<uint64_t>(slot_bytes(slot)) - sizeof(s);
  const std::string name = "slot " + std::to_string(slot);
  if (s.checksum != checksum_of(s) || s.blob_bytes > room)
    state_error("group state is damaged", name + ": wrong checksum", "");
  HeadHistory history;
  history.has_order = s.blob_bytes > 0;
  history.last_call_step = s.last_call_step;
  history.f_at_grouping = s.f_at_grouping;
  history.f_last = s.f_last;
  if (head != nullptr && history.has_order &&
      !spec::HeadState::deserialise({at + sizeof(s), s.blob_bytes}, head))
    state_error("group state is damaged", name + ": its order cannot be read", "");
  return history;
}

void GroupState::store(int64_t slot, const spec::HeadState& head, const HeadHistory& history) {
  const std::vector<uint8_t> blob = head.serialise();
  const auto room = static_cast<size_t>(slot_bytes(slot)) - sizeof(SlotHeader);
  if (blob.size() > room)
    fail(VCA_ERR_INTERNAL, {"an order does not fit its slot", std::to_string(blob.size()),
                            std::to_string(room), "please report it"});
  write_slot(slot, {blob.size(), history.last_call_step, history.f_at_grouping, history.f_last, 0},
             blob.data());
}

void GroupState::touch(int64_t slot, const HeadHistory& history) {
  SlotHeader s;
  std::memcpy(&s, slot_at(slot), sizeof(s));
  s.last_call_step = history.last_call_step;
  s.f_at_grouping = history.f_at_grouping;
  s.f_last = history.f_last;
  write_slot(slot, s, nullptr);
}

std::vector<uint8_t> GroupState::save() const {
  Writer w;
  w.put_bytes(reinterpret_cast<const uint8_t*>(kBlobMagic), sizeof(kBlobMagic));
  w.put(kVersion);
  w.put(header().problem);
  w.put(header().slots);
  for (int64_t slot = 0; slot < slots(); ++slot) {
    spec::HeadState head;
    load(slot, &head);  // a damaged slot must not be spread
    SlotHeader s;
    std::memcpy(&s, slot_at(slot), sizeof(s));
    w.put(static_cast<uint64_t>(s.last_call_step));
    w.put(std::bit_cast<uint64_t>(s.f_at_grouping));
    w.put(std::bit_cast<uint64_t>(s.f_last));
    w.put(s.blob_bytes);
    w.put_bytes(slot_at(slot) + sizeof(s), s.blob_bytes);
  }
  Hash h;
  h.add_bytes(w.out.data(), w.out.size());
  w.put(h.value());
  return std::move(w.out);
}

void GroupState::load_blob(const Request& request, void* state, size_t bytes, const uint8_t* blob,
                           size_t blob_bytes) {
  constexpr size_t kChecksum = 8;
  if (blob == nullptr || blob_bytes < sizeof(kBlobMagic) + kChecksum)
    state_error("state blob is missing or truncated", std::to_string(blob_bytes) + " bytes", "");
  const std::span<const uint8_t> all(blob, blob_bytes);
  Hash h;
  h.add_bytes(blob, blob_bytes - kChecksum);
  if (Reader(all.last(kChecksum)).get() != h.value())
    state_error("state blob is damaged", "wrong checksum", "");
  Reader r(all.first(blob_bytes - kChecksum));
  if (std::memcmp(r.get_bytes(sizeof(kBlobMagic)).data(), kBlobMagic, sizeof(kBlobMagic)) != 0)
    state_error("this is no group state blob", "another magic", "");
  if (const uint64_t version = r.get(); version != kVersion)
    state_error("state blob has another version", std::to_string(version),
                std::to_string(kVersion));
  const int64_t slots = slot_count(request);
  if (r.get() != state_hash(request) || r.get() != static_cast<uint64_t>(slots))
    state_error("state blob belongs to another problem", "other shapes, segments or grouping", "");
  struct Item {
    SlotHeader header;
    std::span<const uint8_t> blob;
  };
  std::vector<Item> items;  // everything is checked before the state changes
  for (int64_t slot = 0; slot < slots; ++slot) {
    Item item{};
    item.header.last_call_step = static_cast<int64_t>(r.get());
    item.header.f_at_grouping = std::bit_cast<double>(r.get());
    item.header.f_last = std::bit_cast<double>(r.get());
    item.header.blob_bytes = r.get();
    item.blob = r.get_bytes(item.header.blob_bytes);
    const StateRoom& room = request.rooms[static_cast<size_t>(unit_sub(request, slot))];
    spec::HeadState head;
    if (!item.blob.empty() && (static_cast<int64_t>(item.blob.size()) > blob_room(room) ||
                               !spec::HeadState::deserialise(item.blob, &head)))
      state_error("state blob is damaged", "slot " + std::to_string(slot), "");
    items.push_back(item);
  }
  if (!r.at_end()) state_error("state blob is longer than its slots", "", "");
  init(request, state, bytes);
  GroupState to(&request, state);
  for (size_t i = 0; i < items.size(); ++i)
    to.write_slot(static_cast<int64_t>(i), items[i].header, items[i].blob.data());
}

}  // namespace vca::core
