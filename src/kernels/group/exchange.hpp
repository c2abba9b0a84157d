// SPDX-License-Identifier: Apache-2.0
// Pair exchange, second half: what two blocks exchange.
#pragma once

#include "kernels/group/blocks.hpp"

namespace vca::kernels::group {

// One pair of blocks: `inner` times, the 128 rows of smallest (x.axis, rank), axis being the
// difference of the block sums, become the first block. Kept only where the squared norms of the
// sums grew. Thread i owns row i and knows on which side it is; sums change by the rows that change
// sides.
template <int kD>
struct Exchange {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 5;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kPair = 2 * kRows;
  static constexpr int kBins = 256;
  struct Row {
    int32_t key, rank;
  };
  struct Shared {
    unsigned char rows[kPair * kD];
    int32_t rank[kPair];
    int32_t key[kPair];
    int32_t bins[kBins];  // keys in each of 256 equal parts of their range
    Row listed[kPair];    // keys of the part that holds the 128th
    int32_t low[kD], total[kD];
    uint32_t axis[2][kD / 4];  // the axis as 256 * high + low, bytes in the channels' order
    int64_t norms[2 * kWarps];
    int32_t least[kWarps], most[kWarps], counts[kWarps];
    int32_t n_listed;
    int32_t moved;  // whether a row has changed sides in the last split
  };
  static int64_t smem_bytes(const Params&) { return sizeof(Shared); }
  VCA_DEVICE static void run(const Params& p, int32_t pass, int64_t items) {
    if (pass >= *p.most_passes) return;
    const auto last = static_cast<int32_t>(items);
    auto& s = *shared_at<Shared>(0);
    Work work = next_work(p, pass, static_cast<int32_t>(ptx::cta_index()), last);
    while (work.item < last) {
      load(p, s, work);
      const Work next =
          next_work(p, pass, work.item + static_cast<int32_t>(ptx::grid_size()), last);
      exchange(p, s, work.a, work.b, next);
      work = next;
      sync_threads(kThreads);
    }
  }

 private:
  // A pair, and the row that this thread is going to load, long before it is needed.
  struct Work {
    int32_t item, a, b, rank;  // fewer than 2^31 items: each stands for 16 KiB of INT8 or more
    const int8_t* values;
  };
  VCA_DEVICE static Work next_work(const Params& p, int32_t pass, int32_t item, int32_t items) {
    const auto slots = static_cast<int32_t>(p.max_blocks / 2);
    Work out{item, 0, 0, 0, nullptr};
    for (; out.item < items; out.item += static_cast<int32_t>(ptx::grid_size())) {
      const Piece at = piece_of(out.item, slots);
      const Problem x = problem_at(p, at.whole);
      const int32_t slot = at.part;
      if (!exchanges(p, x, pass) || slot >= p.n_pairs[x.index]) continue;
      const int32_t* pair = p.pairs + x.block0 + 2 * slot;
      out.a = static_cast<int32_t>(x.block0) + pair[0];
      out.b = static_cast<int32_t>(x.block0) + pair[1];
      out.values = p.values + (x.row0 - x.rank0) * kD;
      out.rank = p.order[int64_t{thread() < kRows ? out.a : out.b} * kRows + thread() % kRows];
      break;
    }
    return out;
  }
  VCA_DEVICE static void prefetch([[maybe_unused]] const int8_t* row) {
#if defined(__CUDACC__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row));
#endif
  }

  VCA_DEVICE static void exchange(const Params& p, Shared& s, int64_t a, int64_t b,
                                  const Work& next) {
    bool low = thread() < kRows, moved = false;
    for (int i = 0; i < p.inner; ++i) {
      project(s);
      if (i == 0 && next.values != nullptr) prefetch(next.values + int64_t{next.rank} * kD);
      s.bins[thread()] = 0;
      if (thread() == 0) s.n_listed = s.moved = 0;
      sync_threads(kThreads);
      const bool was_low = low;
      low = split(s);
      move(s, low, was_low);
      sync_threads(kThreads);
      // The same sums give the same axis and the same split again.
      if (s.moved == 0) break;
      moved = true;
      if (i + 1 < p.inner) {
        if (thread() < kD) set_axis(s, thread(), s.total[thread()] - 2 * s.low[thread()]);
        sync_threads(kThreads);
      }
    }
    if (moved) store(p, s, a, b, low);
  }

  VCA_DEVICE static void load(const Params& p, Shared& s, const Work& work) {
    s.rank[thread()] = work.rank;
    if (thread() < kD) {
      const int32_t low = p.sums[work.a * kD + thread()], high = p.sums[work.b * kD + thread()];
      s.low[thread()] = low;
      s.total[thread()] = low + high;
      set_axis(s, thread(), high - low);
    }
    sync_threads(kThreads);
    constexpr int kParts = kD / 16;
    VCA_UNROLL_4
    for (int i = 0; i < kParts; ++i) {
      const int row = i * (kThreads / kParts) + thread() / kParts, part = thread() % kParts;
      store_word4(s.rows + chunk_offset<kD>(row, part),
                  load_word4(work.values + int64_t{s.rank[row]} * kD + part * 16));
    }
    sync_threads(kThreads);
  }

  // axis = 256 * high + low, both signed bytes: |axis| <= 32512.
  VCA_DEVICE static void set_axis(Shared& s, int channel, int32_t axis) {
    const int32_t low = static_cast<int8_t>(axis & 255);
    reinterpret_cast<int8_t*>(s.axis[0])[channel] = static_cast<int8_t>((axis - low) >> 8);
    reinterpret_cast<int8_t*>(s.axis[1])[channel] = static_cast<int8_t>(low);
  }

  // Two columns of an MMA are the two bytes of the axis; a warp takes its own 32 rows.
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
    ptx::bar_warp_sync();
    const int32_t key = s.key[thread()];
    const int32_t least = ptx::redux_sync_min(key), most = ptx::redux_sync_max(key);
    if (lane() == 0) {
      s.least[warp()] = least;
      s.most[warp()] = most;
    }
  }

  // Whether the thread's row is among the 128 of smallest (key, rank). The range of the keys is cut
  // in 256 parts: whole parts below the one with the 128th key are low, and inside it rows are
  // compared one by one.
  VCA_DEVICE static bool split(Shared& s) {
    const int32_t key = s.key[thread()];
    int32_t least = s.least[lane() % kWarps], most = s.most[lane() % kWarps];
    least = ptx::redux_sync_min(least);
    most = ptx::redux_sync_max(most);
    // |key| < 2^30, so the span is below 2^31.
    const uint32_t span = static_cast<uint32_t>(most) - static_cast<uint32_t>(least);
    const uint32_t shift = span < kBins ? 0 : static_cast<uint32_t>(24 - leading_zeros(span));
    const auto bin =
        static_cast<int32_t>((static_cast<uint32_t>(key) - static_cast<uint32_t>(least)) >> shift);
    ptx::red_shared_add(&s.bins[bin], 1);
    sync_threads(kThreads);
    // Every warp finds the part for itself; a lane looks at eight.
    const Word4 first = load_word4(s.bins + lane() * 8),
                second = load_word4(s.bins + lane() * 8 + 4);
    int32_t count[8];
    VCA_UNROLL
    for (int i = 0; i < 4; ++i) {
      count[i] = static_cast<int32_t>(word_of(first, i));
      count[4 + i] = static_cast<int32_t>(word_of(second, i));
    }
    int32_t sum = 0;
    VCA_UNROLL
    for (int i = 0; i < 8; ++i) sum += count[i];
    int32_t up_to = sum;
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
      const auto below = static_cast<int32_t>(ptx::shfl_sync_idx(
          static_cast<uint32_t>(up_to), (static_cast<uint32_t>(lane()) - distance) & 31u));
      if (static_cast<uint32_t>(lane()) >= distance) up_to += below;
    }
    int32_t need = kRows - (up_to - sum), part = lane() * 8, members = 0;
    const bool here = need > 0 && need <= sum;
    if (here) {
      // `need` of the parts from `part` on.
      int i = 0;
      VCA_UNROLL
      for (int j = 0; j < 7; ++j)
        if (i == j && need > count[j]) {
          need -= count[j];
          ++i;
        }
      part += i;
      VCA_UNROLL
      for (int j = 0; j < 8; ++j) members = i == j ? count[j] : members;
    }
    const uint32_t mask = ptx::vote_sync_ballot(here);
    const auto owner = static_cast<uint32_t>(popcount((mask & (0u - mask)) - 1u));
    part = static_cast<int32_t>(ptx::shfl_sync_idx(static_cast<uint32_t>(part), owner));
    need = static_cast<int32_t>(ptx::shfl_sync_idx(static_cast<uint32_t>(need), owner));
    members = static_cast<int32_t>(ptx::shfl_sync_idx(static_cast<uint32_t>(members), owner));
    if (members == need) return bin <= part;
    // The same decision in every warp.
    const Row own{key, s.rank[thread()]};
    if (bin == part) s.listed[add_shared(&s.n_listed, 1)] = own;
    sync_threads(kThreads);
    if (bin != part) return bin < part;
    int32_t before = 0;
    for (int i = 0; i < members; ++i) {
      const Row other = s.listed[i];
      before += other.key < own.key || (other.key == own.key && other.rank < own.rank) ? 1 : 0;
    }
    return before < need;
  }
  VCA_DEVICE static int leading_zeros(uint32_t x) {
#if defined(__CUDACC__)
    return __clz(static_cast<int>(x));
#else
    return std::countl_zero(x);
#endif
  }

  // Adds the rows that come to the first half to its sums, and takes away those that leave. Sums of
  // unsigned bytes in two halves of a word; a half's borrow from the other is undone at the end.
  VCA_DEVICE static void move(Shared& s, bool low, bool was_low) {
    const uint32_t come = ptx::vote_sync_ballot(low && !was_low);
    const uint32_t leave = ptx::vote_sync_ballot(was_low && !low);
    if ((come | leave) == 0) return;
    constexpr int kLanes = kD / 4;
    const int word = lane() % kLanes;
    int32_t even = 0, odd = 0;
    add_rows(s, come, word, 1, even, odd);
    add_rows(s, leave, word, -1, even, odd);
    const int32_t bias = 128 * (popcount(come) - popcount(leave));
    if (lane() < kLanes) {
      int32_t* to = s.low + word * 4;
      const auto half = [](int32_t x) { return static_cast<int32_t>(static_cast<int16_t>(x)); };
      ptx::red_shared_add(to, half(even) - bias);
      ptx::red_shared_add(to + 1, half(odd) - bias);
      ptx::red_shared_add(to + 2, (even - half(even)) / 65536 - bias);
      ptx::red_shared_add(to + 3, (odd - half(odd)) / 65536 - bias);
    }
    if (lane() == 0) s.moved = 1;
  }
  VCA_DEVICE static void add_rows(const Shared& s, uint32_t rows, int word, int32_t sign,
                                  int32_t& even, int32_t& odd) {
    while (rows != 0) {
      const int row = warp() * 32 + popcount((rows & (0u - rows)) - 1u);
      rows &= rows - 1;
      const uint32_t bytes = *reinterpret_cast<const uint32_t*>(
                                 s.rows + chunk_offset<kD>(row, word / 4) + word % 4 * 4) ^
                             0x80808080u;
      even += sign * static_cast<int32_t>(bytes & 0x00FF00FFu);
      odd += sign * static_cast<int32_t>(bytes >> 8 & 0x00FF00FFu);
    }
  }

  VCA_DEVICE static void store(const Params& p, Shared& s, int64_t a, int64_t b, bool is_low) {
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
    const uint32_t mask = ptx::vote_sync_ballot(is_low);
    if (lane() == 0) {
      s.norms[warp()] = low2;
      s.norms[kWarps + warp()] = high2;
      s.counts[warp()] = popcount(mask);
    }
    sync_threads(kThreads);
    low2 = high2 = 0;
    int32_t lows = popcount(mask & ((1u << lane()) - 1u));  // before this row
    for (int w = 0; w < kWarps; ++w) {
      low2 += s.norms[w];
      high2 += s.norms[kWarps + w];
      lows += w < warp() ? s.counts[w] : 0;
    }
    if (low2 + high2 <= p.norm2[a] + p.norm2[b]) return;
    sync_threads(kThreads);  // all have compared before the norms change
    if (thread() < kD) {
      p.sums[a * kD + thread()] = low;
      p.sums[b * kD + thread()] = high;
      p.means[a * kD + thread()] = mean_of_sum(low);
      p.means[b * kD + thread()] = mean_of_sum(high);
    }
    if (thread() == 0) {
      p.norm2[a] = low2;
      p.norm2[b] = high2;
    }
    p.order[(is_low ? a * kRows + lows : b * kRows + thread() - lows)] = s.rank[thread()];
  }
};

}  // namespace vca::kernels::group
