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
constexpr uint32_t kChunkBytes = 16;

}  // namespace

SharedMemory::SharedMemory(Cta& cta, uint32_t base, uint32_t bytes)
    : cta_(cta),
      base_(base),
      bytes_(bytes),
      data_(bytes, kPoison),
      flags_(bytes, 0),
      writer_(bytes, 0),
      written_at_(bytes, 0),
      chunk_readers_((bytes + kChunkBytes - 1) / kChunkBytes, 0) {}

std::string SharedMemory::where(uint32_t address) const {
  return hex(address) + " (dynamic_smem + " + std::to_string(int64_t{address} - base_) + ")";
}

void SharedMemory::check_range(const char* instruction, const char* access, uint32_t address,
                               uint32_t bytes, uint32_t alignment) const {
  if (address % alignment != 0) {
    cta_.fault(instruction, std::string(access) + ": misaligned address " + where(address) +
                                ", allowed multiples of " + std::to_string(alignment));
  }
  if (address < base_ || uint64_t{address} + bytes > uint64_t{base_} + bytes_) {
    cta_.fault(instruction, std::string(access) + ": out of bounds: " + std::to_string(bytes) +
                                " bytes at " + where(address) + ", allowed " + hex(base_) + " to " +
                                hex(base_ + bytes_));
  }
}

void SharedMemory::check_readable(const char* instruction, const char* access, uint32_t address,
                                  uint32_t bytes) const {
  const uint32_t offset = address - base_;
  for (uint32_t i = offset; i < offset + bytes; ++i) {
    const uint8_t flags = flags_[i];
    if ((flags & ~kGenericWrite) == kInitialised) continue;
    if ((flags & kBarrier) != 0) {
      cta_.fault(instruction,
                 std::string(access) + ": reads an mbarrier object at " + where(base_ + i));
    }
    if ((flags & kInFlight) != 0) {
      cta_.fault(instruction, std::string(access) + ": reads " + where(base_ + i) +
                                  " while a bulk copy into it is in flight (no wait on its "
                                  "mbarrier, or on the wrong phase)");
    }
    cta_.fault(instruction,
               std::string(access) + ": reads uninitialised shared memory at " + where(base_ + i));
  }
}

void SharedMemory::check_writable(const char* instruction, const char* access, uint32_t address,
                                  uint32_t bytes) const {
  const uint32_t offset = address - base_;
  for (uint32_t i = offset; i < offset + bytes; ++i) {
    if ((flags_[i] & kBarrier) != 0) {
      cta_.fault(instruction,
                 std::string(access) + ": writes an mbarrier object at " + where(base_ + i));
    }
    if ((flags_[i] & kInFlight) != 0) {
      cta_.fault(instruction, std::string(access) + ": writes " + where(base_ + i) +
                                  " while a bulk copy into it is in flight");
    }
    if (chunk_readers_[i / kChunkBytes] != 0) {
      cta_.fault(instruction, std::string(access) + ": writes " + where(base_ + i) +
                                  " while a wgmma that reads it has not been waited for");
    }
  }
}

void SharedMemory::check_proxy(const char* instruction, const char* access, uint32_t address,
                               uint32_t bytes) {
  const uint32_t offset = address - base_;
  for (uint32_t i = offset; i < offset + bytes; ++i) {
    if ((flags_[i] & kGenericWrite) == 0) continue;
    const Thread& writer = cta_.thread(writer_[i]);
    const uint64_t fenced = std::max(writer.proxy_fence_at, cta_.self().proxy_fence_at);
    if (fenced < written_at_[i]) {
      cta_.fault(instruction, std::string(access) + ": the async proxy touches " +
                                  where(base_ + i) + ", written by thread " +
                                  std::to_string(writer.index) +
                                  " with st.shared and no fence.proxy.async since");
    }
    flags_[i] &= static_cast<uint8_t>(~kGenericWrite);
  }
}

uint32_t SharedMemory::load_u32(const char* instruction, uint32_t address) {
  check_range(instruction, "address", address, 4, 4);
  check_readable(instruction, "address", address, 4);
  uint32_t value;
  std::memcpy(&value, &data_[address - base_], sizeof(value));
  return value;
}

void SharedMemory::store_u32(const char* instruction, uint32_t address, uint32_t value) {
  check_range(instruction, "address", address, 4, 4);
  check_writable(instruction, "address", address, 4);
  const uint32_t offset = address - base_;
  std::memcpy(&data_[offset], &value, sizeof(value));
  const uint64_t now = cta_.tick();
  for (uint32_t i = offset; i < offset + 4; ++i) {
    flags_[i] = kInitialised | kGenericWrite;
    writer_[i] = static_cast<uint16_t>(cta_.self().index);
    written_at_[i] = now;
  }
}

void SharedMemory::begin_copy(const char* instruction, uint32_t address, uint32_t bytes) {
  check_range(instruction, "destination", address, bytes, kChunkBytes);
  check_writable(instruction, "destination", address, bytes);
  check_proxy(instruction, "destination", address, bytes);
  std::memset(&data_[address - base_], kPoison, bytes);
  std::memset(&flags_[address - base_], kInFlight, bytes);
}

void SharedMemory::land_copy(uint32_t address, uint32_t bytes, const void* source) {
  std::memcpy(&data_[address - base_], source, bytes);
  std::memset(&flags_[address - base_], kInitialised, bytes);
}

void SharedMemory::lock_chunk(const char* instruction, const char* operand, uint32_t address) {
  check_range(instruction, operand, address, kChunkBytes, kChunkBytes);
  // Eight flags at once in the usual case of bytes that a bulk copy has written.
  uint64_t flags[2];
  std::memcpy(flags, &flags_[address - base_], sizeof(flags));
  constexpr uint64_t kPlain = 0x0101010101010101ull * kInitialised;
  if (flags[0] != kPlain || flags[1] != kPlain) {
    check_readable(instruction, operand, address, kChunkBytes);
    check_proxy(instruction, operand, address, kChunkBytes);
  }
  ++chunk_readers_[(address - base_) / kChunkBytes];
}

void SharedMemory::unlock_chunk(uint32_t address) {
  --chunk_readers_[(address - base_) / kChunkBytes];
}

void SharedMemory::claim_barrier(uint32_t address) {
  const uint32_t offset = address - base_;
  for (uint32_t i = offset; i < offset + 8; ++i) flags_[i] = kInitialised | kBarrier;
}

}  // namespace vca::emu
