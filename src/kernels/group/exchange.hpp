// SPDX-License-Identifier: Apache-2.0
// Pair exchange: which blocks meet (Match), and what they exchange (Exchange).
#pragma once

#include "kernels/group/blocks.hpp"
#include "kernels/group/distances.hpp"

namespace vca::kernels::group {

// One block of threads a problem. In a round every free block proposes to its nearest free block
// not met in the last passes; mutual proposals pair up. A proposal stays the nearest as long as its
// target is free; the next one is the next free entry of the block's list, and where the list ends,
// a warp looks through the table.
struct Match {
  static constexpr int kThreads = 1024;
  static constexpr int kMinBlocks = 1;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int32_t kUnknown = -1, kNobody = -2;
  // Counters | proposal, place in the list, blocks to look up, free?: four words a block.
  static int64_t smem_bytes(const Params& p) { return 16 * p.max_blocks + 16; }
  VCA_DEVICE static void run(const Params& p, int32_t pass, int64_t items) {
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Problem x = problem_at(p, item);
      if (exchanges(p, x, pass)) match(p, x, pass);
      sync_threads(kThreads);
    }
  }

 private:
  VCA_DEVICE static void match(const Params& p, const Problem& x, int32_t pass) {
    auto* counts = shared_at<int32_t>(0);  // pairs so far, blocks to look up
    auto* proposal = shared_at<int32_t>(16);
    int32_t* next = proposal + x.full;
    int32_t* look_up = next + x.full;
    int32_t* is_free = look_up + x.full;
    int32_t* tried = p.tried + x.block0 * kPairMemory;
    int32_t* pairs = p.pairs + x.block0;
    for (int32_t b = thread(); b < x.full; b += kThreads) {
      proposal[b] = kUnknown;
      next[b] = 0;
      is_free[b] = 1;
      if (pass == 0)
        for (int i = 0; i < kPairMemory; ++i) tried[b * kPairMemory + i] = kUnknown;
    }
    if (thread() < 2) counts[thread()] = 0;
    sync_threads(kThreads);
    int32_t before = 0;
    for (int32_t round = 0; round < p.rounds && x.full - 2 * before > 1; ++round) {
      for (int32_t a = thread(); a < x.full; a += kThreads) {
        const int32_t old = proposal[a];
        if (is_free[a] == 0 || old == kNobody || (old >= 0 && is_free[old] != 0)) continue;
        if (!next_listed(p.lists + (x.block0 + a) * kListed, is_free, next[a], proposal[a]))
          look_up[add_shared(&counts[1], 1)] = a;
      }
      sync_threads(kThreads);
      const int32_t n_look_up = counts[1];
      for (int32_t i = warp(); i < n_look_up; i += kWarps) {
        const int32_t a = look_up[i];
        const int32_t found =
            nearest(matrix_of(p, x) + a * x.pitch, is_free, x.full, a, tried + a * kPairMemory);
        if (lane() == 0) proposal[a] = found;
      }
      sync_threads(kThreads);
      for (int32_t a = thread(); a < x.full; a += kThreads) {
        const int32_t b = proposal[a];
        if (is_free[a] == 0 || b <= a || proposal[b] != a) continue;
        const int32_t at = add_shared(&counts[0], 1);
        pairs[2 * at] = a;
        pairs[2 * at + 1] = b;
        tried[a * kPairMemory + pass % kPairMemory] = b;
        tried[b * kPairMemory + pass % kPairMemory] = a;
      }
      if (thread() == 0) counts[1] = 0;
      sync_threads(kThreads);
      const int32_t now = counts[0];
      for (int32_t i = 2 * before + thread(); i < 2 * now; i += kThreads) is_free[pairs[i]] = 0;
      sync_threads(kThreads);
      if (now == before) break;
      before = now;
    }
    if (thread() == 0) p.n_pairs[x.index] = counts[0];
  }

  // False where the list ends.
  VCA_DEVICE static bool next_listed(const int32_t* list, const int32_t* is_free, int32_t& at,
                                     int32_t& proposal) {
    for (; at < kListed; ++at) {
      const int32_t b = list[at];
      if (b == kListEnd) at = kListed;
      if (b == kListEnd || is_free[b] == 0) continue;
      proposal = b;
      return true;
    }
    return false;
  }

  VCA_DEVICE static int32_t nearest(const int32_t* row, const int32_t* is_free, int32_t n,
                                    int32_t self, const int32_t* tried) {
    int32_t avoid[kPairMemory];
    VCA_UNROLL
    for (int i = 0; i < kPairMemory; ++i) avoid[i] = tried[i];
    Candidate best{INT32_MAX, kNobody};
    VCA_UNROLL_8
    for (int32_t b = lane(); b < n; b += 32) {
      const int32_t distance = row[b];
      bool barred = b == self || is_free[b] == 0;
      VCA_UNROLL
      for (int i = 0; i < kPairMemory; ++i) barred = barred || b == avoid[i];
      if (!barred && distance < best.key) best = {distance, b};
    }
    const int32_t key = ptx::redux_sync_min(best.key);
    if (key == INT32_MAX) return kNobody;
    return ptx::redux_sync_min(best.key == key ? best.index : INT32_MAX);
  }
};

// One pair of blocks: `inner` times, the 128 rows of smallest (x.axis, rank), axis being the
// difference of the block sums, become the first block. Kept only where the squared norms of the
// sums grew.
template <int kD>
struct Exchange {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kPair = 2 * kRows;
  struct Shared {
    unsigned char rows[kPair * kD];
    int32_t rank[kPair];
    int32_t key[kPair];
    int32_t low_rows[kRows];    // rows of the first half
    int32_t parts[kWarps][kD];  // partial sums
    int32_t low[kD], total[kD];
    uint32_t axis[2][kD / 4];  // the axis as 256 * high + low, bytes in the channels' order
    int64_t norms[2 * kWarps];
    int32_t counts[kWarps];
    int32_t moved;            // whether the last split changed the sums
    int32_t threshold, ties;  // keys below are low, and so are `ties` of the equal ones
  };
  static int64_t smem_bytes(const Params&) { return sizeof(Shared); }
  VCA_DEVICE static void run(const Params& p, int32_t pass, int64_t items) {
    const int64_t slots = p.max_blocks / 2;
    auto& s = *shared_at<Shared>(0);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Problem x = problem_at(p, item / slots);
      if (!exchanges(p, x, pass) || item % slots >= p.n_pairs[x.index]) continue;
      const int32_t* pair = p.pairs + x.block0 + 2 * (item % slots);
      exchange(p, x, s, x.block0 + pair[0], x.block0 + pair[1]);
      sync_threads(kThreads);
    }
  }

 private:
  VCA_DEVICE static void exchange(const Params& p, const Problem& x, Shared& s, int64_t a,
                                  int64_t b) {
    load(p, x, s, a, b);
    for (int i = 0; i < p.inner; ++i) {
      project(s);
      sync_threads(kThreads);
      if (warp() == 0) find_threshold(s);
      if (thread() == kThreads - 1) s.moved = 0;
      sync_threads(kThreads);
      split(s);
      sync_threads(kThreads);
      sum_low(s);
      sync_threads(kThreads);
      if (thread() < kD) {
        int32_t low = 0;
        VCA_UNROLL
        for (int w = 0; w < kWarps; ++w) low += s.parts[w][thread()];
        if (low != s.low[thread()]) s.moved = 1;
        s.low[thread()] = low;
        set_axis(s, thread(), s.total[thread()] - 2 * low);
      }
      sync_threads(kThreads);
      // The same sums give the same axis and the same split again.
      if (s.moved == 0) break;
    }
    store(p, s, a, b);
  }

  VCA_DEVICE static void load(const Params& p, const Problem& x, Shared& s, int64_t a, int64_t b) {
    const int32_t rank = p.order[(thread() < kRows ? a : b) * kRows + thread() % kRows];
    s.rank[thread()] = rank;
    sync_threads(kThreads);
    const int8_t* values = p.values + (x.row0 - x.rank0) * kD;
    constexpr int kParts = kD / 16;
    VCA_UNROLL
    for (int i = 0; i < kParts; ++i) {
      const int row = i * (kThreads / kParts) + thread() / kParts, part = thread() % kParts;
      store_word4(s.rows + chunk_offset<kD>(row, part),
                  load_word4(values + int64_t{s.rank[row]} * kD + part * 16));
    }
    if (thread() < kD) {
      const int32_t low = p.sums[a * kD + thread()], high = p.sums[b * kD + thread()];
      s.low[thread()] = low;
      s.total[thread()] = low + high;
      set_axis(s, thread(), high - low);
    }
    sync_threads(kThreads);
  }

  // axis = 256 * high + low, both signed bytes: |axis| <= 32512.
  VCA_DEVICE static void set_axis(Shared& s, int channel, int32_t axis) {
    const int32_t low = static_cast<int8_t>(axis & 255);
    reinterpret_cast<int8_t*>(s.axis[0])[channel] = static_cast<int8_t>((axis - low) >> 8);
    reinterpret_cast<int8_t*>(s.axis[1])[channel] = static_cast<int8_t>(low);
  }

  // Two columns of an MMA are the two bytes of the axis; a warp takes 32 rows.
  VCA_DEVICE static void project(Shared& s) {
    const int g = lane() / 4, t = lane() % 4;
    RowShare<kD> column = empty_share<kD>();
    if (g < 2) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(s.axis[g]);
      VCA_UNROLL
      for (int c = 0; c < RowShare<kD>::kChunks; ++c)
        column.chunk[c] = load_word4(bytes + (t + 4 * c) * 16);
    }
    ptx::bar_warp_sync();
    VCA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = warp() * 32 + i * 16 + g;
      int32_t dot[4] = {0, 0, 0, 0};
      multiply<kD>(dot, share_from_shared<kD>(s.rows, row, t),
                   share_from_shared<kD>(s.rows, row + 8, t), column);
      if (t == 0) {
        s.key[row] = 256 * dot[0] + dot[1];
        s.key[row + 8] = 256 * dot[2] + dot[3];
      }
    }
  }

  // The smallest T with at least 128 keys up to it, or any with exactly 128: which values are tried
  // on the way does not matter for what comes out.
  VCA_DEVICE static void find_threshold(Shared& s) {
    int32_t key[kPair / 32], low = INT32_MAX, high = INT32_MIN;
    VCA_UNROLL
    for (int i = 0; i < kPair / 32; ++i) {
      key[i] = s.key[i * 32 + lane()];
      low = key[i] < low ? key[i] : low;
      high = key[i] > high ? key[i] : high;
    }
    low = ptx::redux_sync_min(low);
    high = ptx::redux_sync_max(high);
    int32_t below = 0, up_to = kPair;  // keys below `low`, keys up to `high`
    for (int turn = 0; low < high; ++turn) {
      // Two steps by the share of keys, one by half: the keys are spread more or less evenly.
      const int32_t span = high - low;  // |key| < 2^30
      int32_t step = span / 2;
      if (turn % 3 != 2)
        step = static_cast<int32_t>(static_cast<float>(span) * (static_cast<float>(kRows - below) /
                                                                static_cast<float>(up_to - below)));
      const int32_t middle = low + (step < span ? step : span - 1);
      int32_t count = 0;
      VCA_UNROLL
      for (int i = 0; i < kPair / 32; ++i) count += key[i] <= middle ? 1 : 0;
      count = ptx::redux_sync_add(count);
      if (count == kRows) {
        low = middle + 1;  // all of them, none of the equal ones
        below = kRows;
        break;
      }
      if (count > kRows) {
        high = middle;
        up_to = count;
      } else {
        low = middle + 1;
        below = count;
      }
    }
    if (lane() == 0) {
      s.threshold = low;
      s.ties = kRows - below;
    }
  }

  // Lists the rows of the first half, in any fixed order.
  VCA_DEVICE static void split(Shared& s) {
    const int32_t key = s.key[thread()];
    bool low = key < s.threshold;
    if (key == s.threshold && s.ties > 0) {
      // Equal keys go by rank.
      int32_t before = 0;
      for (int i = 0; i < kPair; ++i)
        before += s.key[i] == key && s.rank[i] < s.rank[thread()] ? 1 : 0;
      low = before < s.ties;
    }
    const uint32_t mask = ptx::vote_sync_ballot(low);
    if (lane() == 0) s.counts[warp()] = popcount(mask);
    sync_threads(kThreads);
    int32_t at = popcount(mask & ((1u << lane()) - 1u));
    for (int w = 0; w < kWarps; ++w) at += w < warp() ? s.counts[w] : 0;
    if (low) s.low_rows[at] = thread();
    s.key[thread()] = low ? 1 : 0;  // for store()
  }

  VCA_DEVICE static void sum_low(Shared& s) {
    constexpr int kLanes = kD / 4, kRowsAtOnce = 32 / kLanes, kOwn = kRows / kWarps;
    const int word = lane() % kLanes;
    uint32_t even = 0, odd = 0;
    VCA_UNROLL
    for (int i = 0; i < kOwn / kRowsAtOnce; ++i) {
      const int row = s.low_rows[warp() * kOwn + i * kRowsAtOnce + lane() / kLanes];
      const uint32_t bytes = *reinterpret_cast<const uint32_t*>(
                                 s.rows + chunk_offset<kD>(row, word / 4) + word % 4 * 4) ^
                             0x80808080u;
      even += bytes & 0x00FF00FFu;
      odd += bytes >> 8 & 0x00FF00FFu;
    }
    constexpr int32_t kBias = 128 * (kOwn / kRowsAtOnce);
    int32_t channel[4] = {
        static_cast<int32_t>(even & 0xFFFFu) - kBias, static_cast<int32_t>(odd & 0xFFFFu) - kBias,
        static_cast<int32_t>(even >> 16) - kBias, static_cast<int32_t>(odd >> 16) - kBias};
    if constexpr (kRowsAtOnce == 2)
      for (int32_t& c : channel) c += ptx::shfl_sync_bfly(c, 16);
    if (lane() < kLanes)
      for (int c = 0; c < 4; ++c) s.parts[warp()][word * 4 + c] = channel[c];
  }

  VCA_DEVICE static void store(const Params& p, Shared& s, int64_t a, int64_t b) {
    int64_t low2 = 0, high2 = 0;
    int32_t low = 0, high = 0;
    if (thread() < kD) {
      low = s.low[thread()];
      high = s.total[thread()] - low;
      low2 = int64_t{low} * low;
      high2 = int64_t{high} * high;
    }
    low2 = warp_sum(low2);
    high2 = warp_sum(high2);
    if (lane() == 0) {
      s.norms[warp()] = low2;
      s.norms[kWarps + warp()] = high2;
    }
    sync_threads(kThreads);
    low2 = high2 = 0;
    for (int w = 0; w < kWarps; ++w) {
      low2 += s.norms[w];
      high2 += s.norms[kWarps + w];
    }
    if (low2 + high2 <= p.norm2[a] + p.norm2[b]) return;
    sync_threads(kThreads);  // all have compared before the norms change
    if (thread() < kRows) {
      p.order[a * kRows + thread()] = s.rank[s.low_rows[thread()]];
      if (thread() < kD) {
        p.sums[a * kD + thread()] = low;
        p.sums[b * kD + thread()] = high;
        p.means[a * kD + thread()] = mean_of_sum(low);
        p.means[b * kD + thread()] = mean_of_sum(high);
      }
    }
    if (thread() == 0) {
      p.norm2[a] = low2;
      p.norm2[b] = high2;
    }
    // Row i of the second half has i - (lows before it) highs before it.
    const bool high_row = s.key[thread()] == 0;
    const uint32_t mask = ptx::vote_sync_ballot(high_row);
    int32_t at = popcount(mask & ((1u << lane()) - 1u));
    for (int w = 0; w < warp(); ++w) at += 32 - s.counts[w];
    if (high_row) p.order[b * kRows + at] = s.rank[thread()];
  }
};

}  // namespace vca::kernels::group
