// SPDX-License-Identifier: Apache-2.0
// Pair exchange, second half: what two blocks exchange.
#pragma once

#include "kernels/group/blocks.hpp"

namespace vca::kernels::group {

// One pair of blocks: `inner` times, the 128 rows of smallest (x.axis, rank), axis being the
// difference of the block sums, become the first block. Kept only where the squared norms of the
// sums grew. Thread i owns rows 2i and 2i + 1 and knows on which side they are; sums change by the
// rows that change sides. Six pairs to a processor, so that some load or wait while others compute.
template <int kD>
struct Exchange {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 6;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kPair = 2 * kRows;
  static constexpr int kOwn = kPair / kThreads;  // rows of a thread
  static constexpr int kWarpRows = kPair / kWarps;
  static constexpr int kSteps = RowShare<kD>::kSteps;
  static constexpr int kBins = 256;
  struct Shared {
    unsigned char rows[kPair * kD];
    int32_t rank[kPair];
    int32_t key[kPair];
    int32_t bins[kBins];  // keys in each of 256 equal parts of their range
    int32_t low[kD], total[kD];
    int8_t axis[2][kD];  // high and low bytes of the axis
    int64_t norms[2 * kWarps];
    int32_t least[kWarps], most[kWarps], counts[kWarps];
    uint32_t moving[kWarps][kWarpRows / 4];  // bytes: rows of a warp that change sides
    uint8_t listed[kPair];                   // rows in the part that holds the 128th key
    int32_t n_listed;
    int32_t moved;  // whether a row has changed sides in the last split
  };
  static_assert(kMinBlocks * (sizeof(Shared) + 1024) <= 228 * 1024);
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
      exchange(p, s, work.a, work.b);
      work = next;
      sync_threads(kThreads);
    }
  }

 private:
  // A pair, and the rows that this thread is going to load, long before they are needed.
  struct Work {
    int32_t item, a, b,
        rank[kOwn];  // fewer than 2^31 items: each stands for 16 KiB of INT8 or more
    const int8_t* values;
  };
  struct Side {
    bool low[kOwn];
  };
  VCA_DEVICE static Work next_work(const Params& p, int32_t pass, int32_t item, int32_t items) {
    const auto slots = static_cast<int32_t>(p.max_blocks / 2);
    Work out{item, 0, 0, {0, 0}, nullptr};
    for (; out.item < items; out.item += static_cast<int32_t>(ptx::grid_size())) {
      const Piece at = piece_of(out.item, slots);
      const Problem x = problem_at(p, at.whole);
      const int32_t slot = at.part;
      if (!exchanges(x, pass) || slot >= p.n_pairs[x.index]) continue;
      const int32_t* pair = p.pairs + x.block0 + 2 * slot;
      out.a = static_cast<int32_t>(x.block0) + pair[0];
      out.b = static_cast<int32_t>(x.block0) + pair[1];
      out.values = p.values + (x.row0 - x.rank0) * kD;
      const int32_t row = kOwn * thread();
      const int32_t* order = p.order + int64_t{row < kRows ? out.a : out.b} * kRows + row % kRows;
      VCA_UNROLL
      for (int i = 0; i < kOwn; ++i) out.rank[i] = order[i];
      break;
    }
    return out;
  }
  VCA_DEVICE static void exchange(const Params& p, Shared& s, int64_t a, int64_t b) {
    const bool first = thread() < kThreads / 2;
    Side side{{first, first}};
    bool moved = false;
    for (int i = 0; i < p.inner; ++i) {
      project(s);
      for (int j = thread(); j < kBins; j += kThreads) s.bins[j] = 0;
      if (thread() == 0) s.n_listed = s.moved = 0;
      sync_threads(kThreads);
      const Side was = side;
      side = split(s);
      move(s, side, was);
      sync_threads(kThreads);
      // The same sums give the same axis and the same split again.
      if (s.moved == 0) break;
      moved = true;
      if (i + 1 < p.inner) {
        if (thread() < kD) set_axis(s, thread(), s.total[thread()] - 2 * s.low[thread()]);
        sync_threads(kThreads);
      }
    }
    if (moved) store(p, s, a, b, side);
  }

  VCA_DEVICE static void load(const Params& p, Shared& s, const Work& work) {
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) s.rank[kOwn * thread() + i] = work.rank[i];
    if (thread() < kD) {
      const int32_t low = p.sums[work.a * kD + thread()], high = p.sums[work.b * kD + thread()];
      s.low[thread()] = low;
      s.total[thread()] = low + high;
      set_axis(s, thread(), high - low);
    }
    sync_threads(kThreads);
    constexpr int kParts = kD / 16;
    const int part = thread() % kParts;
    // All on the way at once, past the L1, which has no room for them beside six pairs.
    VCA_UNROLL
    for (int row = thread() / kParts, i = 0; i < kPair * kParts / kThreads;
         ++i, row += kThreads / kParts)
      ptx::cp_async_g2s_16(s.rows + chunk_offset<kD>(row, part),
                           work.values + int64_t{s.rank[row]} * kD + part * 16);
    ptx::cp_async_wait_all();
    sync_threads(kThreads);
  }

  // axis = 256 * high + low, both signed bytes: |axis| <= 32512.
  VCA_DEVICE static void set_axis(Shared& s, int channel, int32_t axis) {
    const int32_t low = static_cast<int8_t>(axis & 255);
    s.axis[0][channel] = static_cast<int8_t>((axis - low) >> 8);
    s.axis[1][channel] = static_cast<int8_t>(low);
  }

  // Four words of a row are the first operand of an MMA, its second and fourth as if they were
  // those of a row eight below: row g meets the even words of the axis, row g + 8 the odd ones, so
  // that a load of 16 bytes is an operand as it stands. Columns 0 and 1 of the second operand are
  // the bytes of the even words, 2 and 3 those of the odd ones; lanes with t = 0 and t = 1 add up
  // what belongs together. A warp takes its own 64 rows, 32 at once, so that products need not wait
  // for each other.
  VCA_DEVICE static void project(Shared& s) {
    const int g = lane() / 4, t = lane() % 4;
    constexpr int kChunks = RowShare<kD>::kChunks, kAtOnce = 4;
    uint32_t low[kChunks] = {}, high[kChunks] = {};
    if (g < 4) {
      const RowShare<kD> axis = share_from_global<kD>(s.axis[g % 2], t);
      VCA_UNROLL
      for (int c = 0; c < kChunks; ++c) {
        low[c] = g < 2 ? axis.chunk[c].x : axis.chunk[c].y;
        high[c] = g < 2 ? axis.chunk[c].z : axis.chunk[c].w;
      }
    }
    ptx::bar_warp_sync();
    VCA_UNROLL
    for (int i0 = 0; i0 < kWarpRows; i0 += 8 * kAtOnce) {
      const int row0 = warp() * kWarpRows + i0 + g;
      RowShare<kD> share[kAtOnce];
      VCA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) share[i] = share_from_shared<kD>(s.rows, row0 + 8 * i, t);
      int32_t dot[kAtOnce][4] = {};
      VCA_UNROLL
      for (int c = 0; c < kChunks; ++c) VCA_UNROLL
      for (int i = 0; i < kAtOnce; ++i)
        ptx::mma_m16n8k32_s32_s8_s8(dot[i], share[i].chunk[c].x, share[i].chunk[c].y,
                                    share[i].chunk[c].z, share[i].chunk[c].w, low[c], high[c]);
      VCA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t part = t == 0 ? 256 * dot[i][0] + dot[i][1] : 256 * dot[i][2] + dot[i][3];
        const int32_t sum = part + ptx::shfl_sync_bfly(part, 1);
        if (t == 0) s.key[row0 + 8 * i] = sum;
      }
    }
    ptx::bar_warp_sync();
    const int32_t first = s.key[kOwn * thread()], second = s.key[kOwn * thread() + 1];
    const int32_t least = ptx::redux_sync_min(first < second ? first : second),
                  most = ptx::redux_sync_max(first < second ? second : first);
    if (lane() == 0) {
      s.least[warp()] = least;
      s.most[warp()] = most;
    }
  }

  // Whether the thread's rows are among the 128 of smallest (key, rank). The range of the keys is
  // cut in 256 parts: whole parts below the one with the 128th key are low, and inside it rows are
  // compared one by one.
  VCA_DEVICE static Side split(Shared& s) {
    int32_t key[kOwn], bin[kOwn];
    int32_t least = s.least[0], most = s.most[0];
    VCA_UNROLL
    for (int w = 1; w < kWarps; ++w) {
      least = s.least[w] < least ? s.least[w] : least;
      most = s.most[w] > most ? s.most[w] : most;
    }
    // |key| < 2^30, so the span is below 2^31.
    const uint32_t span = static_cast<uint32_t>(most) - static_cast<uint32_t>(least);
    const uint32_t shift = span < kBins ? 0 : static_cast<uint32_t>(24 - leading_zeros(span));
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      key[i] = s.key[kOwn * thread() + i];
      bin[i] = static_cast<int32_t>(
          (static_cast<uint32_t>(key[i]) - static_cast<uint32_t>(least)) >> shift);
      ptx::red_shared_add(&s.bins[bin[i]], 1);
    }
    sync_threads(kThreads);
    const Border at = find_border(s);
    Side side;
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) side.low[i] = bin[i] <= at.part;
    if (at.members == at.need) return side;  // the same decision in every warp
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i)
      if (bin[i] == at.part)
        s.listed[ptx::atom_shared_add(&s.n_listed, 1)] = static_cast<uint8_t>(kOwn * thread() + i);
    sync_threads(kThreads);
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      if (bin[i] != at.part) continue;
      const int32_t rank = s.rank[kOwn * thread() + i];
      int32_t before = 0;
      for (int j = 0; j < at.members; ++j) {
        const int other = s.listed[j];
        before += s.key[other] < key[i] || (s.key[other] == key[i] && s.rank[other] < rank) ? 1 : 0;
      }
      side.low[i] = before < at.need;
    }
    return side;
  }

  // The part with the 128th key, how many rows it has, and how many of them are low.
  struct Border {
    int32_t part, members, need;
  };
  // Every warp finds it for itself; a lane looks at eight parts.
  VCA_DEVICE static Border find_border(const Shared& s) {
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
    const int32_t up_to = sum_up_to_lane(sum);
    Border out{lane() * 8, 0, kRows - (up_to - sum)};
    const bool here = out.need > 0 && out.need <= sum;
    if (here) {
      // `need` of the parts from `part` on.
      int i = 0;
      VCA_UNROLL
      for (int j = 0; j < 7; ++j)
        if (i == j && out.need > count[j]) {
          out.need -= count[j];
          ++i;
        }
      out.part += i;
      VCA_UNROLL
      for (int j = 0; j < 8; ++j) out.members = i == j ? count[j] : out.members;
    }
    const uint32_t mask = ptx::vote_sync_ballot(here);
    const auto owner = static_cast<uint32_t>(popcount((mask & (0u - mask)) - 1u));
    const auto from_owner = [owner](int32_t x) {
      return static_cast<int32_t>(ptx::shfl_sync_idx(static_cast<uint32_t>(x), owner));
    };
    return {from_owner(out.part), from_owner(out.members), from_owner(out.need)};
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
  VCA_DEVICE static void move(Shared& s, const Side& side, const Side& was) {
    constexpr uint32_t kLeaves = 128;  // beside a row's number in its warp
    auto* list = reinterpret_cast<uint8_t*>(s.moving[warp()]);
    int32_t n = 0, net = 0;
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const bool moves = side.low[i] != was.low[i];
      const uint32_t mask = ptx::vote_sync_ballot(moves);
      const uint32_t leave = ptx::vote_sync_ballot(moves && was.low[i]);
      if (moves)
        list[n + popcount(mask & ((1u << lane()) - 1u))] = static_cast<uint8_t>(
            static_cast<uint32_t>(kOwn * lane() + i) | (was.low[i] ? kLeaves : 0u));
      n += popcount(mask);
      net += popcount(mask) - 2 * popcount(leave);
    }
    if (n == 0) return;
    ptx::bar_warp_sync();
    constexpr int kLanes = kD / 4;
    const int word = lane() % kLanes;
    int32_t even = 0, odd = 0;
    VCA_UNROLL_1
    for (int i = 0; i < n; i += 4) {
      const uint32_t entries = s.moving[warp()][i / 4];
      VCA_UNROLL
      for (int j = 0; j < 4; ++j) {
        const uint32_t entry = entries >> (8 * j);
        const int row =
            warp() * kWarpRows + static_cast<int>(entry & (kLeaves - 1) & (kWarpRows - 1));
        const int32_t sign = i + j >= n ? 0 : (entry & kLeaves) != 0 ? -1 : 1;
        const uint32_t bytes = *reinterpret_cast<const uint32_t*>(
                                   s.rows + chunk_offset<kD>(row, word / 4) + word % 4 * 4) ^
                               0x80808080u;
        even += sign * static_cast<int32_t>(bytes & 0x00FF00FFu);
        odd += sign * static_cast<int32_t>(bytes >> 8 & 0x00FF00FFu);
      }
    }
    const int32_t bias = 128 * net;
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

  VCA_DEVICE static void store(const Params& p, Shared& s, int64_t a, int64_t b, const Side& side) {
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
    static_assert(kOwn == 2);
    const uint32_t even = ptx::vote_sync_ballot(side.low[0]),
                   odd = ptx::vote_sync_ballot(side.low[1]), below = (1u << lane()) - 1u;
    if (lane() == 0) {
      s.norms[warp()] = low2;
      s.norms[kWarps + warp()] = high2;
      s.counts[warp()] = popcount(even) + popcount(odd);
    }
    sync_threads(kThreads);
    low2 = high2 = 0;
    int32_t lows = popcount(even & below) + popcount(odd & below);  // before these rows
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
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int row = kOwn * thread() + i;
      p.order[side.low[i] ? a * kRows + lows : b * kRows + row - lows] = s.rank[row];
      lows += side.low[i] ? 1 : 0;
    }
  }
};

}  // namespace vca::kernels::group
