// SPDX-License-Identifier: Apache-2.0
// The text of a deadlock: what each warp waits for, lanes at one place in one line.
#include <string>
#include <string_view>

#include "emu/cluster.hpp"

namespace vca::emu {
namespace {

bool same_place(const Thread& a, const Thread& b) {
  return a.finished == b.finished && a.wait.kind == b.wait.kind && a.wait.object == b.wait.object &&
         a.wait.detail == b.wait.detail &&
         std::string_view(a.wait.instruction) == b.wait.instruction;
}

// "0-15, 17" of a lane mask.
std::string lane_list(uint32_t lanes) {
  std::string text;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1u) == 0) continue;
    uint32_t last = lane;
    while (last + 1 < 32 && (lanes >> (last + 1) & 1u) != 0) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(lane);
    if (last != lane) text += "-" + std::to_string(last);
    lane = last;
  }
  return text;
}

}  // namespace

std::string Cta::describe_place(const Thread& thread) const {
  if (thread.finished) return "finished";
  const WaitSite& wait = thread.wait;
  const std::string instruction = wait.instruction;
  switch (wait.kind) {
    case WaitKind::none:
      return "runnable";
    case WaitKind::mbarrier:
      return instruction + " on " + smem_->where(wait.object) + " for parity " +
             std::to_string(wait.detail) + ": " + barriers_->describe(wait.object);
    case WaitKind::named_barrier:
      return instruction + " " + collectives_->describe_named_barrier(wait.object);
    case WaitKind::cluster_barrier:
      return instruction + ": " + cluster_.describe_barrier();
    case WaitKind::warp:
      return instruction + ": the other lanes of the warp have not come";
    case WaitKind::warpgroup:
      return instruction + ": the other warps of the warpgroup have not come";
    case WaitKind::registers:
      return instruction + " to " + std::to_string(wait.detail) + ": " +
             collectives_->describe_registers();
    case WaitKind::wgmma:
      return instruction + ": " + warpgroups_[thread.warpgroup()]->describe_wait(thread);
  }
  return instruction;
}

// A line for each place where lanes stand: " lanes 0-3: ...".
std::string Cta::describe_warp(uint32_t warp) const {
  std::string text;
  uint32_t told = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((told >> lane & 1u) != 0) continue;
    const Thread& thread = *threads_[warp * 32 + lane];
    uint32_t lanes = 0;
    for (uint32_t other = lane; other < 32; ++other) {
      if (same_place(thread, *threads_[warp * 32 + other])) lanes |= 1u << other;
    }
    told |= lanes;
    if (lanes != 0xFFFFFFFFu) text += " lanes " + lane_list(lanes);
    text += ": " + describe_place(thread) + "\n";
  }
  return text;
}

std::string Cta::deadlock_report() const {
  std::string text = "CTA " + std::to_string(index_) + ": deadlock: " + std::to_string(live_) +
                     " of " + std::to_string(threads_.size()) +
                     " threads wait and no asynchronous work is in flight\n";
  // Warps in a row that stand alike share their lines.
  uint32_t first_alike = 0;
  std::string places;
  const auto tell = [&](uint32_t end) {
    const std::string name = end - first_alike == 1 ? "warp " + std::to_string(first_alike)
                                                    : "warps " + std::to_string(first_alike) + "-" +
                                                          std::to_string(end - 1);
    for (size_t begin = 0; begin < places.size();) {
      const size_t line_end = places.find('\n', begin) + 1;
      text += "  " + name + places.substr(begin, line_end - begin);
      begin = line_end;
    }
  };
  const uint32_t warps = thread_count() / 32;
  for (uint32_t warp = 0; warp < warps; ++warp) {
    const std::string here = describe_warp(warp);
    if (warp != 0 && here != places) {
      tell(warp);
      first_alike = warp;
    }
    places = here;
  }
  tell(warps);
  return text;
}

}  // namespace vca::emu
