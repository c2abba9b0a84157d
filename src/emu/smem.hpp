// SPDX-License-Identifier: Apache-2.0
// Shared memory of one CTA: a window of addresses with a shadow state for each byte.
#pragma once

#include <cstdint>
#include <vector>

#include "emu/thread.hpp"

namespace vca::emu {

inline constexpr uint32_t kMaxSmemBytes = 227u << 10;  // sm_90, per CTA
inline constexpr uint32_t kSmemWindowBytes = 228u << 10;
inline constexpr uint32_t kSmemAlignment_bytes = 1024;

class SharedMemory {
 public:
  SharedMemory(Cta& cta, uint32_t base, uint32_t bytes);

  uint32_t base() const { return base_; }
  uint32_t bytes() const { return bytes_; }

  // Every function below faults on addresses outside the window; `access` names what the address is
  // for in the message.
  void check_range(const char* instruction, const char* access, uint32_t address, uint32_t bytes,
                   uint32_t alignment) const;

  // Generic proxy: ld.shared, st.shared.
  uint32_t load_u32(const char* instruction, uint32_t address);
  void store_u32(const char* instruction, uint32_t address, uint32_t value);

  // Asynchronous proxy. A bulk copy owns its destination from issue (`begin_copy`) to landing.
  void begin_copy(const char* instruction, uint32_t address, uint32_t bytes);
  void land_copy(uint32_t address, uint32_t bytes, const void* source);

  // Matrix operands: 16-byte chunks. `lock_chunk` checks that the instruction may read it now and
  // forbids writes until `unlock_chunk`.
  void lock_chunk(const char* instruction, const char* operand, uint32_t address);
  void unlock_chunk(uint32_t address);
  const uint8_t* chunk(uint32_t address) const { return &data_[address - base_]; }

  // mbarrier objects occupy 8 bytes that nothing else may touch.
  void claim_barrier(uint32_t address);

  std::string where(uint32_t address) const;

 private:
  enum Flag : uint8_t {
    kInitialised = 1,   // has a value
    kInFlight = 2,      // a bulk copy is on its way
    kGenericWrite = 4,  // written by the generic proxy, no proxy fence known yet
    kBarrier = 8,
  };

  void check_readable(const char* instruction, const char* access, uint32_t address,
                      uint32_t bytes) const;
  void check_writable(const char* instruction, const char* access, uint32_t address,
                      uint32_t bytes) const;
  // The bytes' generic writes must be ordered before an access of the async proxy.
  void check_proxy(const char* instruction, const char* access, uint32_t address, uint32_t bytes);

  Cta& cta_;
  uint32_t base_;
  uint32_t bytes_;
  std::vector<uint8_t> data_;
  std::vector<uint8_t> flags_;
  std::vector<uint16_t> writer_;         // thread of the last generic write
  std::vector<uint64_t> written_at_;     // its time
  std::vector<uint16_t> chunk_readers_;  // matrix instructions reading each 16-byte chunk
};

}  // namespace vca::emu
