// SPDX-License-Identifier: Apache-2.0
// What happens to each unit (policy and state of the caller), the order it starts from, and what it
// leaves behind. Everything is decided on the device.
#pragma once

#include "kernels/group/blocks.hpp"
#include "kernels/group/tokens.hpp"

namespace vca::kernels::group {

// A number that changes with the set of valid tokens of a sub-problem, wherever they are counted.
struct Fingerprint {
  static constexpr int kThreads = 1024;
  static constexpr int kMinBlocks = 1;
  static int64_t smem_bytes(const Params&) { return 8 * (kThreads / 32); }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    auto* parts = shared_at<int64_t>(0);
    for (int64_t sub = ptx::cta_index(); sub < items; sub += ptx::grid_size()) {
      const int32_t* tokens = p.tokens + p.extra[sub].chunk_base * kRows;
      uint64_t sum = 0;
      for (int64_t i = thread(); i < p.n_valid[sub]; i += kThreads)
        sum += mix(static_cast<uint64_t>(tokens[i]) + 1);
      const int64_t of_warp = warp_sum(static_cast<int64_t>(sum));
      if (lane() == 0) parts[warp()] = of_warp;
      sync_threads(kThreads);
      if (thread() == 0) {
        uint64_t all = 0;
        for (int w = 0; w < kThreads / 32; ++w) all += static_cast<uint64_t>(parts[w]);
        p.fingerprint[sub] = all;
      }
      sync_threads(kThreads);
    }
  }

 private:
  // The finaliser of MurmurHash3 (Appleby): spreads neighbouring tokens over all 64 bits.
  VCA_DEVICE static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDu;
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53u;
    return x ^ (x >> 33);
  }
};

// A state of this problem's, which is believed and written.
VCA_DEVICE bool has_state(const Params& p) {
  return p.state != nullptr && p.state->magic == kStateMagic && p.state->problem == p.state_hash;
}

// core::decide() for every unit; one block of threads in all.
struct Decide {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 1;
  static int64_t smem_bytes(const Params&) { return 16; }
  VCA_DEVICE static void run(const Params& p, int64_t) {
    auto* found = shared_at<int32_t>(0);  // a cold unit, most passes, a warm unit
    if (thread() < 3) found[thread()] = 0;
    sync_threads(kThreads);
    for (int64_t unit = thread(); unit < p.n_units; unit += kThreads) {
      decide(p, unit);
      p.token_wanted[unit] = forms_order(p.units[unit].start) ? 1 : 0;
      Unit& u = p.units[unit];
      u.passes = u.start == Start::cold   ? cold_passes(p)
                 : u.start == Start::warm ? p.warm_passes
                                          : 0;
      if (u.start == Start::cold) found[0] = 1;
      if (u.start == Start::warm) found[2] = 1;
      if (u.passes > 0) ptx::red_shared_max(&found[1], u.passes);
    }
    sync_threads(kThreads);
    if (thread() != 0) return;
    *p.any_cold = found[0];
    *p.any_warm = found[2];
    *p.most_passes = found[1];
  }
  // Of a unit that starts cold.
  VCA_DEVICE static int32_t cold_passes(const Params& p) {
    return has_state(p) && core::regroups_next(p.policy, *p.step) ? p.followed_passes
                                                                  : p.cold_passes;
  }

 private:
  VCA_DEVICE static void decide(const Params& p, int64_t unit) {
    Unit& out = p.units[unit];
    out.start = Start::cold;
    out.used = static_cast<int32_t>(p.kind == spec::Grouping::automatic ? spec::Grouping::vsmooth
                                                                        : p.kind);
    if (!has_state(p)) return;
    const UnitState& s = p.unit_state[unit];
    const bool fits =
        s.has_order != 0 && (p.fixed_tokens || s.fingerprint == p.fingerprint[unit / p.h_kv]);
    core::HeadHistory history;
    history.has_order = s.has_order != 0;
    history.last_call_step = s.last_call_step;
    history.f_at_grouping = s.f_at_grouping;
    history.f_last = s.f_last;
    const core::Action action = core::decide(p.policy, *p.step, history);
    if (action == core::Action::identity) {
      out.start = Start::identity;
    } else if (fits && action == core::Action::keep) {
      out.start = Start::keep;
      out.used = s.used;
    } else if (fits && p.warm_passes > 0 && s.used == out.used) {
      out.start = Start::warm;
    }
  }
};

// The order a unit starts from: the state's, or token order. A kept order stays in the state.
struct LoadOrder {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kBlocks = 8;  // of an item
  static int64_t smem_bytes(const Params&) { return 0; }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    const int64_t tiles = ceil_div(p.max_blocks, kBlocks);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, tiles);
      const Problem x = problem_at(p, at.whole);
      if (x.start == Start::keep) continue;
      const int64_t first = int64_t{at.part} * kBlocks * kRows;
      const bool old = x.start == Start::warm;
      for (int64_t i = first + thread(); i < min_i64(x.n, first + kBlocks * kRows); i += kThreads) {
        const int64_t place = x.block0 * kRows + i;
        p.order[place] = old ? p.state_order[place] : x.rank0 + static_cast<int32_t>(i);
      }
    }
  }
};

// Warm units whose order has lost too much, in the watched blocks, start cold.
struct Judge {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 1;
  static int64_t smem_bytes(const Params&) { return 16 * (kThreads / 32); }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_warm == 0) return;
    for (int64_t unit = ptx::cta_index(); unit < items; unit += ptx::grid_size()) {
      if (p.units[unit].start == Start::warm) {
        const double f =
            removed_energy<kThreads>(p, unit, true, p.norm2, p.energy, ptx::dynamic_smem_pointer());
        const bool lost = f < mul_f64(p.warm_share, p.unit_state[unit].f_at_grouping);
        if (thread() == 0 && lost) {
          const int32_t passes = Decide::cold_passes(p);
          p.units[unit].start = Start::cold;
          p.units[unit].passes = passes;
          *p.any_cold = 1;
          if (passes > p.warm_passes) *p.most_passes = passes;
        }
      }
      sync_threads(kThreads);
    }
  }
};

// Tokens of every place; ranks go to the state. Blocks are sets: ascending inside, except where the
// specification's grouping does not sort them (kmeans, cubes).
struct StoreOrder {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kWarps = kThreads / 32;
  static int64_t smem_bytes(const Params&) { return 0; }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    const int64_t tiles = ceil_div(p.max_blocks, kWarps);
    const bool state = has_state(p);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, tiles);
      const Problem x = problem_at(p, at.whole);
      const int64_t block = int64_t{at.part} * kWarps + warp();
      if (block >= x.k) continue;
      const int32_t n = static_cast<int32_t>(min_i64(kRows, x.n - block * kRows));
      const int64_t place = (x.block0 + block) * kRows;
      const int32_t* ranks = ranks_of(p, x) + place;
      int32_t rank[4];  // element lane + 32 i
      for (int i = 0; i < 4; ++i)
        rank[i] = lane() + 32 * i < n ? ranks[lane() + 32 * i] : INT32_MAX;
      const bool sorted = x.start == Start::keep || x.start == Start::identity ||
                          p.kind == spec::Grouping::kmeans || p.kind == spec::Grouping::cubes ||
                          p.kind == spec::Grouping::identity;
      if (!sorted) sort(rank);
      const int32_t* tokens = p.tokens + p.extra[x.sub].chunk_base * kRows;
      const bool keeps = state && x.start != Start::identity && x.start != Start::keep;
      for (int i = 0; i < 4; ++i) {
        if (lane() + 32 * i >= n) continue;
        p.out_order[place + lane() + 32 * i] = tokens[rank[i]];
        if (keeps) p.state_order[place + lane() + 32 * i] = rank[i];
      }
    }
  }

 private:
  // Bitonic sort of 128 elements by a warp: partners at distance 32 and 64 share a lane.
  VCA_DEVICE static void sort(int32_t (&x)[4]) {
    VCA_UNROLL
    for (int size = 2; size <= kRows; size *= 2) VCA_UNROLL
    for (int distance = size / 2; distance > 0; distance /= 2) {
      if (distance >= 32) {
        VCA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int j = i ^ (distance / 32);
          if (j < i) continue;
          const bool ascending = ((i * 32) & size) == 0;
          const int32_t low = x[i] < x[j] ? x[i] : x[j], high = x[i] < x[j] ? x[j] : x[i];
          x[i] = ascending ? low : high;
          x[j] = ascending ? high : low;
        }
      } else {
        VCA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int32_t other = ptx::shfl_sync_bfly(x[i], static_cast<uint32_t>(distance));
          const bool ascending = ((i * 32 + lane()) & size) == 0;
          const bool first = (lane() & distance) == 0;
          const bool take_low = ascending == first;
          const int32_t low = x[i] < other ? x[i] : other, high = x[i] < other ? other : x[i];
          x[i] = take_low ? low : high;
        }
      }
    }
  }
};

// Norms and energies of the watched blocks of the resulting order. Where no order was formed there
// are no tokens: these rows become tokens here.
struct Watch {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static int64_t smem_bytes(const Params& p) { return BlockSums::smem_bytes(p); }
  static constexpr int64_t kMost = 127;  // watched blocks of a problem
  static int64_t tiles(const Params& p) { return p.max_blocks < kMost ? p.max_blocks : kMost; }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    const int64_t tiles = items / p.n_problems;
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, tiles);
      const Problem x = problem_at(p, at.whole);
      const int32_t block = at.part * spec::watch_stride(x.k);
      if (block >= x.k) continue;
      if (p.d_pad == 128)
        watch<128>(p, x, block);
      else
        watch<64>(p, x, block);
      sync_threads(kThreads);
    }
  }

 private:
  template <int kD>
  VCA_DEVICE static void watch(const Params& p, const Problem& x, int32_t block) {
    const int n = x.n - block * kRows < kRows ? x.n - block * kRows : kRows;
    const int32_t* ranks = ranks_of(p, x) + (x.block0 + block) * kRows;
    const auto nothing = [](int, int32_t) {};
    typename RowSums<kD>::Energy out;
    if (forms_order(x.start)) {
      const int8_t* values = p.values + (x.row0 - x.rank0) * kD;
      out = RowSums<kD>::of_block(
          n,
          [&](int place, int part) {
            return load_word4(values + int64_t{ranks[place]} * kD + part * 16);
          },
          nothing);
    } else {
      const int32_t* tokens = p.tokens + p.extra[x.sub].chunk_base * kRows;
      const prep::TokenScale scale = p.scales[x.unit];
      out = RowSums<kD>::of_block(
          n,
          [&](int place, int part) {
            return token_part(p, p.subs[x.sub].batch, x.head, tokens[ranks[place]], part, scale);
          },
          nothing);
    }
    if (thread() != 0) return;
    p.watched_norm2[x.block0 + block] = out.norm2;
    p.watched_energy[x.block0 + block] = out.energy;
  }
};

// f_g of the order, and the history in the state.
struct StoreUnit {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 1;
  static int64_t smem_bytes(const Params&) { return 16 * (kThreads / 32); }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    for (int64_t unit = ptx::cta_index(); unit < items; unit += ptx::grid_size()) {
      double f = 0.0, f_watched = 0.0;
      if (p.state != nullptr)
        f_watched = removed_energy<kThreads>(p, unit, true, p.watched_norm2, p.watched_energy,
                                             ptx::dynamic_smem_pointer());
      if (forms_order(p.units[unit].start))
        f = removed_energy<kThreads>(p, unit, false, p.norm2, p.energy,
                                     ptx::dynamic_smem_pointer());
      else
        f = f_watched;
      if (thread() == 0) store(p, unit, f, f_watched);
      sync_threads(kThreads);
    }
  }

 private:
  VCA_DEVICE static void store(const Params& p, int64_t unit, double f, double f_watched) {
    const Unit& u = p.units[unit];
    p.units[unit].f = f;
    // Without keys there is nothing to order, and the state keeps what it knows of earlier ones.
    if (p.n_valid[unit / p.h_kv] == 0) return;
    const bool regrouped = u.start == Start::cold || u.start == Start::warm;
    if (p.regrouped != nullptr && regrouped)
      p.regrouped[p.subs[unit / p.h_kv].batch * p.h_kv + unit % p.h_kv] = 1;
    if (!has_state(p)) return;
    UnitState& s = p.unit_state[unit];
    const int64_t step = *p.step;
    if (regrouped) {
      s.has_order = 1;
      s.used = u.used;
      s.f_at_grouping = s.f_last = f_watched;
      s.step = step;
      s.fingerprint = p.fixed_tokens ? 0 : p.fingerprint[unit / p.h_kv];
    } else if (u.start == Start::keep && s.last_call_step != step) {
      // With two guidance branches a step, the first one is the measure.
      s.f_last = f_watched;
    }
    s.last_call_step = step;
  }
};

}  // namespace vca::kernels::group
