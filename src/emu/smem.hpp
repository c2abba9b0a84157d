// SPDX-License-Identifier: Apache-2.0
// Shared memory of one CTA: a window of addresses with a shadow state for each 4-byte word.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "emu/clock.hpp"
#include "emu/thread.hpp"

namespace vca::emu {

inline constexpr uint32_t kMaxSmemBytes = 227u << 10;  // sm_90, per CTA
inline constexpr uint32_t kSmemAlignment_bytes = 1024;
inline constexpr uint32_t kChunkBytes = 16;  // granule of bulk copies and matrix operands

// An access, for messages: which instruction, which of its operands.
struct Access {
  const char* instruction;
  const char* operand;
};

class SharedMemory {
 public:
  SharedMemory(Cta& cta, uint32_t base, uint32_t bytes, uint32_t warpgroups);

  uint32_t base() const { return base_; }

  // Faults on addresses outside the window; every function below begins with it.
  void check_range(const Access& access, uint32_t address, uint32_t bytes,
                   uint32_t alignment) const;

  // Generic proxy: ld.shared, st.shared.
  uint32_t load_u32(const Access& access, uint32_t address);
  void store_u32(const Access& access, uint32_t address, uint32_t value);

  // A bulk copy owns its destination from issue to landing.
  void begin_copy(const Access& access, uint32_t address, uint32_t bytes);
  void land_copy(uint32_t address, uint32_t bytes, const void* source, Epoch epoch);

  // Matrix operands. The chunks must be readable, and the async proxy must see their values;
  // `lock` forbids writes until `unlock`. Instruction `number` of `warpgroup` remains known as a
  // reader.
  void lock(const Access& access, const std::vector<uint32_t>& chunks, uint32_t warpgroup,
            uint64_t number);
  void unlock(const std::vector<uint32_t>& chunks);
  // The running thread must know the writes of these chunks.
  void check_known(const Access& access, const std::vector<uint32_t>& chunks) const;
  const uint8_t* chunk(uint32_t address) const { return &data_[address - base_]; }

  // All of it, for ordinary loads and stores, which nothing watches.
  uint8_t* plain() { return data_.data(); }

  // mbarrier objects occupy 8 bytes that nothing else may touch.
  void claim_barrier(const Access& access, uint32_t address);

  std::string where(uint32_t address) const;

 private:
  enum Flag : uint8_t {
    kInitialised = 1,   // has a value
    kInFlight = 2,      // a bulk copy is on its way
    kGenericWrite = 4,  // written by the generic proxy, no proxy fence known yet
    kBarrier = 8,
  };

  uint32_t word(uint32_t address) const { return (address - base_) / 4; }
  uint32_t address_of(uint32_t word) const { return base_ + 4 * word; }

  void check_readable(const Access& access, uint32_t word) const;
  void check_write_known(const Access& access, uint32_t word) const;
  // Nobody may still use the bytes, and all earlier uses must be known to the running thread.
  void check_writable(const Access& access, uint32_t address, uint32_t bytes);
  void check_matrix_readers(const Access& access, uint32_t chunk);
  // The bytes' generic writes must be ordered before an access of the async proxy.
  void check_proxy(const Access& access, uint32_t word);
  [[noreturn]] void fault(const Access& access, const std::string& what, uint32_t word) const;
  std::string writer_name(uint32_t component) const;

  Cta& cta_;
  uint32_t base_;
  uint32_t bytes_;
  std::vector<uint8_t> data_;
  // By word.
  std::vector<uint8_t> flags_;
  std::vector<Epoch> write_;          // the last write
  std::vector<uint64_t> written_at_;  // scheduler time of the last generic write
  std::unordered_map<uint32_t, std::vector<uint32_t>> reads_;  // time of each thread's last read
  // By chunk.
  std::vector<uint16_t> locks_;                       // matrix instructions that own it
  std::vector<std::vector<uint64_t>> matrix_reader_;  // [warpgroup]: 1 + number of the last
};

}  // namespace vca::emu
