// SPDX-License-Identifier: Apache-2.0
#include "emu/smem.hpp"

#include <algorithm>
#include <cstring>

#include "emu/cta.hpp"
#include "emu/text.hpp"

namespace vca::emu {

namespace {

// Not zero, not a likely code, and a NaN when read as FP32 or E4M3.
constexpr uint8_t kPoison = 0xFF;

}  // namespace

SharedMemory::SharedMemory(Cta& cta, uint32_t base, uint32_t bytes, uint32_t warpgroups)
    : cta_(cta), base_(base), bytes_(bytes), data_(bytes, kPoison) {
  const uint32_t words = (bytes + 3) / 4;
  const uint32_t chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
  flags_.assign(words, 0);
  write_.assign(words, Epoch{});
  written_at_.assign(words, 0);
  locks_.assign(chunks, 0);
  matrix_reader_.assign(warpgroups, std::vector<uint64_t>(chunks, 0));
}

std::string SharedMemory::where(uint32_t address) const {
  return hex(address) + " (dynamic_smem + " + std::to_string(int64_t{address} - base_) + ")" +
         (cta_.is_remote() ? " of CTA " + std::to_string(cta_.index()) : "");
}

void SharedMemory::fault(const Access& access, const std::string& what, uint32_t word) const {
  cta_.fault(access.instruction,
             std::string(access.operand) + ": " + what + " at " + where(address_of(word)));
}

std::string SharedMemory::writer_name(uint32_t component) const {
  const uint32_t local = component - cta_.first_component();
  return local < cta_.thread_count() ? "thread " + std::to_string(local) : "a bulk copy";
}

void SharedMemory::check_range(const Access& access, uint32_t address, uint32_t bytes,
                               uint32_t alignment) const {
  if (address % alignment != 0) {
    cta_.fault(access.instruction, std::string(access.operand) + ": misaligned address " +
                                       where(address) + ", allowed multiples of " +
                                       std::to_string(alignment));
  }
  if (address < base_ || uint64_t{address} + bytes > uint64_t{base_} + bytes_) {
    cta_.fault(access.instruction, std::string(access.operand) + ": out of bounds: " +
                                       std::to_string(bytes) + " bytes at " + where(address) +
                                       ", allowed " + hex(base_) + " to " + hex(base_ + bytes_));
  }
}

void SharedMemory::check_readable(const Access& access, uint32_t word) const {
  const uint8_t flags = flags_[word];
  if ((flags & ~kGenericWrite) == kInitialised) return;
  if ((flags & kBarrier) != 0) fault(access, "reads an mbarrier object", word);
  if ((flags & kInFlight) != 0) {
    fault(access,
          "reads the destination of a bulk copy in flight (its mbarrier was not waited for, or in "
          "the wrong phase)",
          word);
  }
  fault(access, "reads uninitialised shared memory", word);
}

void SharedMemory::check_write_known(const Access& access, uint32_t word) const {
  const Epoch& write = write_[word];
  if (write.known_to(cta_.self().clock)) return;
  fault(access,
        "race: reads what " + writer_name(write.component) +
            " wrote, with no synchronisation between the two",
        word);
}

void SharedMemory::check_matrix_readers(const Access& access, uint32_t chunk) {
  const uint32_t first_word = chunk * (kChunkBytes / 4);
  if (locks_[chunk] != 0) {
    fault(access, "writes what a wgmma reads that has not been waited for", first_word);
  }
  for (uint32_t group = 0; group < matrix_reader_.size(); ++group) {
    const uint64_t reader = matrix_reader_[group][chunk];
    if (reader == 0 || cta_.warpgroup(group).retirement_known(reader - 1)) continue;
    fault(access,
          "race: writes what a wgmma of warpgroup " + std::to_string(group) +
              " read, with no synchronisation since its wait_group",
          first_word);
  }
}

void SharedMemory::check_writable(const Access& access, uint32_t address, uint32_t bytes) {
  const VectorClock& clock = cta_.self().clock;
  const uint32_t end = word(address) + bytes / 4;
  for (uint32_t w = word(address); w < end; ++w) {
    if ((flags_[w] & kBarrier) != 0) fault(access, "writes an mbarrier object", w);
    if ((flags_[w] & kInFlight) != 0) {
      fault(access, "writes the destination of a bulk copy in flight", w);
    }
    if (!write_[w].known_to(clock)) {
      fault(access,
            "race: overwrites what " + writer_name(write_[w].component) +
                " wrote, with no synchronisation between the two",
            w);
    }
  }
  for (uint32_t c = (address - base_) / kChunkBytes; c * kChunkBytes < address - base_ + bytes;
       ++c) {
    check_matrix_readers(access, c);
  }
  if (reads_.empty()) return;
  for (uint32_t w = word(address); w < end; ++w) {
    const auto it = reads_.find(w);
    if (it == reads_.end()) continue;
    for (uint32_t reader = 0; reader < it->second.size(); ++reader) {
      const uint32_t component = cta_.first_component() + reader;
      if (it->second[reader] <= clock[component] || component == cta_.self().component) continue;
      fault(access,
            "race: overwrites what thread " + std::to_string(reader) +
                " has read, with no synchronisation between the two",
            w);
    }
    reads_.erase(it);
  }
}

void SharedMemory::check_proxy(const Access& access, uint32_t word) {
  if ((flags_[word] & kGenericWrite) == 0) return;
  const Thread& writer = cta_.thread(write_[word].component - cta_.first_component());
  const uint64_t fenced = std::max(writer.proxy_fence_at, cta_.self().proxy_fence_at);
  if (fenced < written_at_[word]) {
    fault(access,
          "the async proxy touches what thread " + std::to_string(writer.index) +
              " wrote with st.shared, with no fence.proxy.async since",
          word);
  }
  flags_[word] &= static_cast<uint8_t>(~kGenericWrite);
}

uint32_t SharedMemory::load_u32(const Access& access, uint32_t address) {
  check_range(access, address, 4, 4);
  const uint32_t w = word(address);
  check_readable(access, w);
  check_write_known(access, w);
  const Thread& thread = cta_.self();
  std::vector<uint32_t>& reads = reads_[w];
  if (reads.empty()) reads.assign(cta_.thread_count(), 0);
  reads[thread.index] = thread.clock[thread.component];
  uint32_t value;
  std::memcpy(&value, &data_[address - base_], sizeof(value));
  return value;
}

void SharedMemory::store_u32(const Access& access, uint32_t address, uint32_t value) {
  check_range(access, address, 4, 4);
  check_writable(access, address, 4);
  const Thread& thread = cta_.self();
  const uint32_t w = word(address);
  std::memcpy(&data_[address - base_], &value, sizeof(value));
  flags_[w] = kInitialised | kGenericWrite;
  write_[w] = {thread.component, thread.clock[thread.component]};
  written_at_[w] = cta_.tick();
}

void SharedMemory::begin_copy(const Access& access, uint32_t address, uint32_t bytes) {
  check_range(access, address, bytes, kChunkBytes);
  check_writable(access, address, bytes);
  for (uint32_t w = word(address); w < word(address) + bytes / 4; ++w) check_proxy(access, w);
  std::memset(&data_[address - base_], kPoison, bytes);
  std::memset(&flags_[word(address)], kInFlight, bytes / 4);
}

void SharedMemory::land_copy(uint32_t address, uint32_t bytes, const void* source, Epoch epoch) {
  std::memcpy(&data_[address - base_], source, bytes);
  std::memset(&flags_[word(address)], kInitialised, bytes / 4);
  std::fill_n(write_.begin() + word(address), bytes / 4, epoch);
}

void SharedMemory::lock(const Access& access, const std::vector<uint32_t>& chunks,
                        uint32_t warpgroup, uint64_t number) {
  for (uint32_t address : chunks) {
    check_range(access, address, kChunkBytes, kChunkBytes);
    for (uint32_t w = word(address); w < word(address) + kChunkBytes / 4; ++w) {
      check_readable(access, w);
      check_proxy(access, w);
    }
  }
  for (uint32_t address : chunks) {
    const uint32_t c = (address - base_) / kChunkBytes;
    ++locks_[c];
    matrix_reader_[warpgroup][c] = number + 1;
  }
}

void SharedMemory::unlock(const std::vector<uint32_t>& chunks) {
  for (uint32_t address : chunks) --locks_[(address - base_) / kChunkBytes];
}

void SharedMemory::check_known(const Access& access, const std::vector<uint32_t>& chunks) const {
  for (uint32_t address : chunks) {
    for (uint32_t w = word(address); w < word(address) + kChunkBytes / 4; ++w) {
      check_write_known(access, w);
    }
  }
}

void SharedMemory::claim_barrier(const Access& access, uint32_t address) {
  check_writable(access, address, 8);
  const uint32_t w = word(address);
  for (uint32_t i = w; i < w + 2; ++i) flags_[i] = kInitialised | kBarrier;
}

}  // namespace vca::emu
