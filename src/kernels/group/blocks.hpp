// SPDX-License-Identifier: Apache-2.0
// Sums of the 128-row blocks of the order, their means and squared norms: what f_g, the matching
// and the exchange start from.
#pragma once

#include "kernels/group/bits.hpp"

namespace vca::kernels::group {

// round(sum / 128), halves up.
VCA_DEVICE int8_t mean_of_sum(int32_t sum) { return static_cast<int8_t>((sum + 64) >> 7); }

// Which units: those that start from an old order, or those that just got a new one.
enum class Which : int32_t { old_orders, new_orders };

VCA_DEVICE bool selected(Which which, Start start) {
  return start == (which == Which::new_orders ? Start::cold : Start::warm);
}

// Sum of the n rows of a block by 128 threads, kD / 16 lanes a row, 16 channels each: sums of
// unsigned bytes in two halves of a word, which hold 128 * 255. A warp has all its rows on the way
// at once. load(place, part): 16 channels of a row; store(channel, sum): for every channel. The
// squared norm of the sum and the sum of squares, both to thread 0.
template <int kD>
struct RowSums {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int64_t kBytes = kWarps * (kD * 4 + 16);
  struct Energy {
    int64_t norm2;
    int32_t energy;
  };

  template <class Load, class Store>
  VCA_DEVICE static Energy of_block(int n, const Load& load, const Store& store) {
    constexpr int kLanes = kD / 16, kRowsAtOnce = 32 / kLanes, kOwn = kRows / kWarps / kRowsAtOnce;
    auto* parts = shared_at<int32_t>(0);                            // [warp][kD]
    auto* energies = shared_at<int32_t>(int64_t{kWarps} * kD * 4);  // [warp]
    auto* norms = shared_at<int64_t>(int64_t{kWarps} * kD * 4 + 16);
    const int part = lane() % kLanes;
    // Rows past the end count as zero.
    Word4 row[kOwn];
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int at = (warp() * kOwn + i) * kRowsAtOnce + lane() / kLanes;
      row[i] = at < n ? load(at, part) : Word4{0, 0, 0, 0};
    }
    uint32_t even[4] = {}, odd[4] = {};
    int32_t energy = 0;
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) VCA_UNROLL
    for (int j = 0; j < 4; ++j) {
      const uint32_t bytes = word_of(row[i], j);
      energy = ptx::dp4a(bytes, bytes, energy);
      const uint32_t shifted = bytes ^ 0x80808080u;  // + 128
      even[j] += shifted & 0x00FF00FFu;
      odd[j] += shifted >> 8 & 0x00FF00FFu;
    }
    VCA_UNROLL
    for (uint32_t mask = kLanes; mask < 32; mask *= 2) {
      VCA_UNROLL
      for (int j = 0; j < 4; ++j) {
        even[j] += ptx::shfl_sync_bfly(even[j], mask);
        odd[j] += ptx::shfl_sync_bfly(odd[j], mask);
      }
    }
    energy = ptx::redux_sync_add(energy);
    constexpr int32_t kBias = 128 * kRows / kWarps;
    if (lane() < kLanes) {
      VCA_UNROLL
      for (int j = 0; j < 4; ++j) {
        int32_t* to = parts + warp() * kD + part * 16 + j * 4;
        to[0] = static_cast<int32_t>(even[j] & 0xFFFFu) - kBias;
        to[1] = static_cast<int32_t>(odd[j] & 0xFFFFu) - kBias;
        to[2] = static_cast<int32_t>(even[j] >> 16) - kBias;
        to[3] = static_cast<int32_t>(odd[j] >> 16) - kBias;
      }
    }
    if (lane() == 0) energies[warp()] = energy;
    sync_threads(kThreads);
    int64_t square = 0;
    if (thread() < kD) {
      int32_t all = 0;
      for (int w = 0; w < kWarps; ++w) all += parts[w * kD + thread()];
      store(thread(), all);
      square = int64_t{all} * all;
    }
    square = warp_sum(square);
    if (lane() == 0) norms[warp()] = square;
    sync_threads(kThreads);
    Energy out{0, 0};
    if (thread() == 0) {
      for (int w = 0; w < kWarps; ++w) {
        out.norm2 += norms[w];
        out.energy += energies[w];
      }
    }
    return out;
  }
};

struct BlockSums {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 8;
  static int64_t smem_bytes(const Params& p) {
    return p.d_pad == 128 ? RowSums<128>::kBytes : RowSums<64>::kBytes;
  }
  VCA_DEVICE static void run(const Params& p, Which which, int64_t items) {
    if (which == Which::new_orders && *p.any_cold == 0) return;
    if (which == Which::old_orders && *p.any_warm == 0) return;
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, p.max_blocks);
      const Problem x = problem_at(p, at.whole);
      if (at.part >= x.k || !selected(which, x.start)) continue;
      if (p.d_pad == 128)
        sum<128>(p, x, at.part);
      else
        sum<64>(p, x, at.part);
      sync_threads(kThreads);
    }
  }

 private:
  template <int kD>
  VCA_DEVICE static void sum(const Params& p, const Problem& x, int32_t block) {
    const int n = x.n - block * kRows < kRows ? x.n - block * kRows : kRows;
    const int32_t* order = p.order + (x.block0 + block) * kRows;
    const int8_t* values = p.values + (x.row0 - x.rank0) * kD;
    const int64_t to = x.block0 + block;
    const auto out = RowSums<kD>::of_block(
        n,
        [&](int place, int part) {
          return load_word4(values + int64_t{order[place]} * kD + part * 16);
        },
        [&](int channel, int32_t all) {
          p.sums[to * kD + channel] = all;
          p.means[to * kD + channel] = mean_of_sum(all);
        });
    if (thread() != 0) return;
    p.norm2[to] = out.norm2;
    p.energy[to] = out.energy;
  }
};

// f_g of a unit, or of its watched blocks: all threads of a block of kThreads get it. norm2,
// energy: of the blocks.
template <int kThreads>
VCA_DEVICE double removed_energy(const Params& p, int64_t unit, bool watched, const int64_t* norm2,
                                 const int32_t* energies, unsigned char* scratch) {
  auto* sums = reinterpret_cast<int64_t*>(scratch);  // [2][warp]
  constexpr int kWarps = kThreads / 32;
  const int64_t sub = piece_of(unit, p.h_kv).whole, head = piece_of(unit, p.h_kv).part;
  const prep::SubExtra& extra = p.extra[sub];
  const int64_t block0 = rows_of(p, sub, head) / kRows;
  int64_t full = 0, energy = 0;
  for (int64_t s = 0; s < extra.n_segments; ++s) {
    const prep::SegmentState state = p.segment_state[extra.state_base + s];
    const auto blocks = static_cast<int32_t>(ceil_div(state.count, kRows));
    const int32_t stride = watched ? spec::watch_stride(blocks) : 1;
    for (int32_t b = thread() * stride; b < blocks; b += kThreads * stride) {
      const int64_t at = block0 + state.block0 + b;
      energy += energies[at];
      if (b < state.count / kRows) full += norm2[at];
    }
  }
  full = warp_sum(full);
  energy = warp_sum(energy);
  if (lane() == 0) {
    sums[warp()] = full;
    sums[kWarps + warp()] = energy;
  }
  sync_threads(kThreads);
  full = energy = 0;
  for (int w = 0; w < kWarps; ++w) {
    full += sums[w];
    energy += sums[kWarps + w];
  }
  sync_threads(kThreads);
  if (energy == 0) return 0.0;
  double tails = 0.0;
  for (int64_t s = 0; s < extra.n_segments; ++s) {
    const prep::SegmentState state = p.segment_state[extra.state_base + s];
    const int32_t n = state.count % kRows, tail = state.count / kRows;
    if (n == 0 || (watched && tail % spec::watch_stride(tail + 1) != 0)) continue;
    const int64_t norm = norm2[block0 + state.block0 + tail];
    tails = add_f64(tails, divide(static_cast<double>(norm), static_cast<double>(n)));
  }
  return divide(add_f64(divide(static_cast<double>(full), kRows), tails),
                static_cast<double>(energy));
}

}  // namespace vca::kernels::group
