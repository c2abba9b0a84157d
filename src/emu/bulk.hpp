// SPDX-License-Identifier: Apache-2.0
// Bulk copies on their way (PTX ISA 9.7.9.25.4.1). They land in any order.
#pragma once

#include <cstdint>
#include <vector>

#include "emu/thread.hpp"

namespace vca::emu {

class BulkCopies {
 public:
  explicit BulkCopies(Cta& cta) : cta_(cta) {}

  void issue(const char* instruction, uint32_t destination, const void* source, uint32_t bytes,
             uint32_t barrier);
  // The same copy to every CTA of the cluster whose bit of `mask` is set, at the same addresses of
  // its shared memory; each lands on its own.
  void issue_multicast(const char* instruction, uint32_t destination, const void* source,
                       uint32_t bytes, uint32_t barrier, uint32_t mask);
  size_t in_flight() const { return copies_.size(); }
  void land(size_t index);
  void check_at_exit() const;
  std::string describe() const;

 private:
  struct Copy {
    uint32_t destination;
    const void* source;
    uint32_t bytes;
    uint32_t barrier;
    const Thread* issued_by;
    VectorClock issuer;  // what that thread knew
  };

  void check_source(const char* instruction, const void* source, uint32_t bytes) const;
  // To this CTA's shared memory, from the running thread.
  void begin(const char* instruction, uint32_t destination, const void* source, uint32_t bytes,
             uint32_t barrier);

  Cta& cta_;
  std::vector<Copy> copies_;
};

}  // namespace vca::emu
