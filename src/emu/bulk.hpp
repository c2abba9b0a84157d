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
    uint32_t issued_by;
    VectorClock issuer;  // what that thread knew
  };

  Cta& cta_;
  std::vector<Copy> copies_;
};

}  // namespace vca::emu
