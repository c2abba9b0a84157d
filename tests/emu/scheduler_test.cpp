// SPDX-License-Identifier: Apache-2.0
// The attention kernels' schedule: every tile once, and in a cluster both CTAs with the same blocks
// of keys in the same order.
#include "kernels/common/scheduler.hpp"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "emu/launch.hpp"

namespace vca::kernels {
namespace {

// Sub-problems of 3, 0 (nothing to attend to), 4 and 1 query tiles, two kv heads, six query heads.
class Schedule {
 public:
  Schedule() {
    int64_t tiles = 0, blocks = 0, groups = 0;
    for (const auto& [n_q_tiles, n_blocks] : {std::pair{3, 5}, {2, 0}, {4, 9}, {1, 1}}) {
      SubInfo& sub = subs_.emplace_back();
      sub.q_tile_base = tiles;
      sub.kv_block_base = blocks;
      sub.mu_group_base = groups;
      sub.n_q_tiles = n_q_tiles;
      sub.n_blocks = n_blocks;
      sub.kv_block_stride = n_blocks;
      sub.mu_group_stride = (n_blocks + 7) / 8;
      sub.q_len = n_q_tiles * 128 - 5;
      tiles += n_q_tiles * 6;
      blocks += n_blocks * 2;
      groups += sub.mu_group_stride * 2;
    }
    params_.subs = subs_.data();
    params_.n_subs = static_cast<int32_t>(subs_.size());
    params_.h_q = 6;
    params_.h_kv = 2;
    params_.max_q_tiles = 4;
  }

  // The tiles of each CTA, in its order.
  template <uint32_t kCluster>
  std::vector<std::vector<Tile>> tiles(uint32_t grid) const {
    std::vector<std::vector<Tile>> out(grid);
    emu::LaunchConfig config;
    config.grid = grid;
    config.cluster = kCluster;
    config.threads = 32;
    emu::launch(config, [&] {
      if (ptx::thread_index() != 0) return;
      TileScheduler<kCluster> scheduler(params_, ptx::cta_index());
      for (Tile t = scheduler.next(); t.valid; t = scheduler.next())
        out[ptx::cta_index()].push_back(t);
    });
    return out;
  }

  // Each tile of sub-problems with keys exactly once; dummies apart.
  void expect_complete(const std::vector<std::vector<Tile>>& ctas) const {
    std::map<std::pair<int64_t, int64_t>, int> seen;  // sub and head, row0
    for (const auto& tiles : ctas)
      for (const Tile& t : tiles) {
        const SubInfo& sub = subs_[static_cast<size_t>(t.sub)];
        EXPECT_EQ(t.n_blocks, sub.n_blocks);
        EXPECT_EQ(t.kv_block, sub.kv_block_base + t.head / 3 * sub.kv_block_stride);
        EXPECT_EQ(t.mu_group, sub.mu_group_base + t.head / 3 * sub.mu_group_stride);
        const int64_t first = sub.q_tile_base + int64_t{t.head} * sub.n_q_tiles;
        if (!has_row(t)) {
          EXPECT_EQ(t.q_tile, first + sub.n_q_tiles - 1) << "a dummy loads a tile that exists";
          continue;
        }
        EXPECT_EQ(t.q_tile, first + t.row0 / 128);
        ++seen[{t.sub * 6 + t.head, t.row0}];
      }
    EXPECT_EQ(seen.size(), 6u * (3 + 4 + 1));
    for (const auto& [tile, count] : seen) EXPECT_EQ(count, 1) << tile.first << ' ' << tile.second;
  }

  // False for a dummy.
  bool has_row(const Tile& t) const { return t.row0 < subs_[static_cast<size_t>(t.sub)].q_len; }

  const AttentionParams& params() const { return params_; }

 private:
  std::vector<SubInfo> subs_;
  AttentionParams params_{};
};

TEST(TileScheduler, OneCtaAloneGetsEveryTileOnce) {
  const Schedule schedule;
  for (const uint32_t grid : {1u, 2u, 7u, 100u}) schedule.expect_complete(schedule.tiles<1>(grid));
}

TEST(TileScheduler, ClustersGetEveryTileOnceInStep) {
  const Schedule schedule;
  for (const uint32_t grid : {2u, 4u, 14u, 200u}) {
    const auto ctas = schedule.tiles<2>(grid);
    schedule.expect_complete(ctas);
    for (uint32_t c = 0; c < grid; c += 2) {
      ASSERT_EQ(ctas[c].size(), ctas[c + 1].size());
      for (size_t i = 0; i < ctas[c].size(); ++i) {
        EXPECT_EQ(ctas[c][i].kv_block, ctas[c + 1][i].kv_block);
        EXPECT_EQ(ctas[c][i].n_blocks, ctas[c + 1][i].n_blocks);
        EXPECT_EQ(ctas[c][i].head, ctas[c + 1][i].head);
        EXPECT_EQ(ctas[c][i].row0 + 128, ctas[c + 1][i].row0);
        EXPECT_EQ(ctas[c][i].q_tile,
                  ctas[c + 1][i].q_tile - (schedule.has_row(ctas[c + 1][i]) ? 1 : 0))
            << "the first of a pair is no dummy";
      }
    }
  }
}

// 196,608 heads of 20,000 tiles: numbers of 32 bits, at the end of int32_t and behind it.
TEST(TileScheduler, NumbersBehindInt32Max) {
  const SubInfo sub = [] {
    SubInfo s{};
    s.q_len = 20000 * 128, s.n_q_tiles = 20000, s.n_blocks = 1;
    return s;
  }();
  AttentionParams params{};
  params.subs = &sub;
  params.n_subs = 1;
  params.h_q = params.h_kv = 196608;
  params.max_q_tiles = 20000;
  for (const uint32_t number : {2147483647u, 2147483648u, 3900000001u}) {
    Tile tile{};
    emu::LaunchConfig config;
    config.threads = 32;
    emu::launch(config, [&] {
      if (ptx::thread_index() == 0) tile = TileScheduler<1>(params, number).next();
    });
    EXPECT_TRUE(tile.valid);
    EXPECT_EQ(tile.q_tile, int64_t{number});
    EXPECT_EQ(tile.head, static_cast<int32_t>(number / 20000));
    EXPECT_EQ(tile.row0, static_cast<int32_t>(number % 20000 * 128));
  }
}

TEST(TileScheduler, GridIsEvenAndNoLargerThanTheWork) {
  const Schedule schedule;
  // 4 sub-problems x 6 heads x at most 4 tiles.
  EXPECT_EQ(TileScheduler<1>::grid(schedule.params(), 132), 96u);
  EXPECT_EQ(TileScheduler<1>::grid(schedule.params(), 7), 7u);
  EXPECT_EQ(TileScheduler<2>::grid(schedule.params(), 132), 96u);
  EXPECT_EQ(TileScheduler<2>::grid(schedule.params(), 7), 6u);
  EXPECT_EQ(TileScheduler<2>::grid(schedule.params(), 1), 2u);
  AttentionParams odd = schedule.params();
  odd.max_q_tiles = 3;
  EXPECT_EQ(TileScheduler<2>::grid(odd, 132), 96u);
  odd.n_subs = 0;
  EXPECT_EQ(TileScheduler<2>::grid(odd, 132), 0u);
}

}  // namespace
}  // namespace vca::kernels
