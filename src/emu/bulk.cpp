// SPDX-License-Identifier: Apache-2.0
#include "emu/bulk.hpp"

#include <cstddef>
#include <utility>

#include "emu/cluster.hpp"

namespace vca::emu {
namespace {

constexpr uint32_t kGranuleBytes = 16;

bool contains(const GlobalRange& range, const void* source, uint32_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(range.begin);
  const auto at = reinterpret_cast<uintptr_t>(source);
  return at >= begin && at - begin <= range.bytes && range.bytes - (at - begin) >= bytes;
}

}  // namespace

void BulkCopies::check_source(const char* instruction, const void* source, uint32_t bytes) const {
  if (bytes == 0 || bytes % kGranuleBytes != 0) {
    cta_.fault(instruction,
               "size: got " + std::to_string(bytes) + " bytes, allowed multiples of 16");
  }
  if (reinterpret_cast<uintptr_t>(source) % kGranuleBytes != 0) {
    cta_.fault(instruction, "misaligned global address, allowed multiples of 16");
  }
  const std::vector<GlobalRange>& readable = cta_.config().readable;
  bool allowed = readable.empty();
  for (const GlobalRange& range : readable) allowed = allowed || contains(range, source, bytes);
  if (!allowed) {
    cta_.fault(instruction, "source: " + std::to_string(bytes) +
                                " bytes outside every buffer that the launch names as readable");
  }
}

void BulkCopies::begin(const char* instruction, uint32_t destination, const void* source,
                       uint32_t bytes, uint32_t barrier) {
  cta_.barriers().check_copy_target(instruction, barrier);
  cta_.smem().begin_copy({instruction, "destination"}, destination, bytes);
  copies_.push_back({destination, source, bytes, barrier, &cta_.self(), cta_.self().clock});
}

void BulkCopies::issue(const char* instruction, uint32_t destination, const void* source,
                       uint32_t bytes, uint32_t barrier) {
  cta_.preempt();
  check_source(instruction, source, bytes);
  begin(instruction, destination, source, bytes, barrier);
  Thread& thread = cta_.self();
  thread.clock.advance(thread.component);
  ++cta_.stats().bulk_copies;
  cta_.async_issued();
}

void BulkCopies::issue_multicast(const char* instruction, uint32_t destination, const void* source,
                                 uint32_t bytes, uint32_t barrier, uint32_t mask) {
  cta_.preempt();
  Cluster& cluster = cta_.cluster();
  if (mask == 0 || mask >> cluster.size() != 0) {
    cta_.fault(instruction, "CTA mask: got " + std::to_string(mask) + ", allowed 1 to " +
                                std::to_string((1u << cluster.size()) - 1));
  }
  check_source(instruction, source, bytes);
  for (uint32_t rank = 0; rank < cluster.size(); ++rank) {
    if ((mask >> rank & 1u) == 0) continue;
    Cta& target = cluster.cta(rank);
    if (target.exited()) {
      cta_.fault(instruction,
                 "writes to CTA " + std::to_string(target.index()) + ", which has exited");
    }
    target.bulk().begin(instruction, destination, source, bytes, barrier);
  }
  Thread& thread = cta_.self();
  thread.clock.advance(thread.component);
  ++cta_.stats().bulk_copies;
  for (uint32_t rank = 0; rank < cluster.size(); ++rank) {
    if ((mask >> rank & 1u) != 0) cluster.cta(rank).async_issued();
  }
}

void BulkCopies::land(size_t index) {
  const Copy copy = std::move(copies_[index]);
  if (index + 1 != copies_.size()) copies_[index] = std::move(copies_.back());
  copies_.pop_back();
  cta_.smem().land_copy(copy.destination, copy.bytes, copy.source,
                        cta_.barriers().next_landing(copy.barrier));
  cta_.barriers().complete_tx(copy.barrier, copy.bytes, copy.issuer, copy.issued_by->cta != &cta_);
}

std::string BulkCopies::describe() const {
  std::string text;
  for (const Copy& copy : copies_) {
    text += std::to_string(copy.bytes) + " bytes to " + cta_.smem().where(copy.destination) +
            " by thread " + std::to_string(copy.issued_by->index) +
            (copy.issued_by->cta == &cta_
                 ? "; "
                 : " of CTA " + std::to_string(copy.issued_by->cta->index()) + "; ");
  }
  return text;
}

void BulkCopies::check_at_exit() const {
  if (!copies_.empty()) {
    cta_.fault("exit", "bulk copies are still in flight: " + describe());
  }
}

}  // namespace vca::emu
