// SPDX-License-Identifier: Apache-2.0
// The grouping kernels on the emulator against the specification: the same permutation and f_g,
// cold and over the steps of a policy. Same sources as on the device.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/group_emulator.hpp"
#include "kernels/group_problem.hpp"
#include "spec/grouping/kmeans.hpp"

namespace vca {
namespace {

using namespace kernels;
using tests::GroupCase;
using tests::GroupProblem;

using EmulatorLauncher = tests::GroupEmulator;

using Buffers = tests::GroupBuffers;

// A problem grouped once, without a state.
struct Grouped {
  explicit Grouped(const GroupCase& shape)
      : problem(shape),
        request(problem.request()),
        layout(request, problem.layout_shape()),
        buffers(layout) {
    group::run_passes(request, layout, problem.params(), buffers.scratch(), group::Part::all,
                      launcher);
  }
  Grouped(const Grouped&) = delete;
  Grouped& operator=(const Grouped&) = delete;
  group::Params params() {
    return group::device_params(request, layout, problem.params(), buffers.scratch());
  }

  GroupProblem problem;
  group::Request request;
  group::Layout layout;
  Buffers buffers;
  EmulatorLauncher launcher;
};

std::string name_of(const testing::TestParamInfo<GroupCase>& info) {
  return std::to_string(info.index);
}

class GroupKernels : public testing::TestWithParam<GroupCase> {};

TEST_P(GroupKernels, EqualTheSpecification) {
  SCOPED_TRACE(GetParam().name);
  Grouped grouped(GetParam());
  const GroupProblem& problem = grouped.problem;
  const group::Params got = grouped.params();
  spec::GroupingParams params;
  params.kind = GetParam().kind;
  for (size_t sub = 0; sub < problem.subs.size(); ++sub)
    for (int64_t head = 0; head < GetParam().h; ++head) {
      const auto expected = spec::group_head(problem.input(sub, head), params, nullptr);
      EXPECT_EQ(tests::compare_order(problem, sub, head, expected.order_by_segment, got.out_order),
                "");
      EXPECT_EQ(got.units[sub * static_cast<size_t>(GetParam().h) + static_cast<size_t>(head)].f,
                expected.f_g);
    }
}

// A sample of more rows than sample_min gets fewer iterations.
TEST(GroupClusters, LargeSamplesGetThreeIterations) {
  Grouped grouped({.name = "", .lens = {3000}, .h = 2, .d = 64});
  group::Params p = grouped.params();
  p.sample_min = 300;
  group::form_clusters<64>(p, grouped.launcher);
  std::vector<int32_t> sample(375);
  for (int32_t i = 0; i < 375; ++i) sample[static_cast<size_t>(i)] = i * 3000 / 375;
  for (int64_t head = 0; head < 2; ++head) {
    const auto tokens = spec::grouping::quantise_tokens(grouped.problem.input(0, head), {});
    const auto expected = spec::grouping::lloyd(tokens, sample, 24, 3, nullptr);
    const int8_t* got = p.centroids + head * 24 * 64;
    EXPECT_TRUE(std::equal(expected.values.begin(), expected.values.end(), got)) << head;
  }
}

// However many centroids a CTA has, their means are the same; 79 centroids of 10,000 rows.
TEST(GroupClusters, EveryShareOfCentroidsGivesTheSameMeans) {
  using Update = group::Update<64>;
  Grouped grouped({.name = "", .lens = {10000}, .d = 64});
  const group::Params p = grouped.params();
  const int32_t m = group::sample_size(p, group::problem_at(p, 0)), k = 79;
  grouped.launcher.launch<group::SampleRows>(group::Grid::item_each, p,
                                             group::SampleRows::tiles(p));
  grouped.launcher.launch<group::StartCentroids>(
      group::Grid::item_each, p, group::ceil_div(k, group::StartCentroids::kCentroids));
  using Assign = group::Assign<64, true>;
  grouped.launcher.launch<Assign>(group::Grid::resident, p, Assign::tiles(p), 0);
  const std::vector<int8_t> start(p.centroids, p.centroids + k * 64);
  std::vector<int32_t> sample(static_cast<size_t>(m));
  for (int32_t i = 0; i < m; ++i)
    sample[static_cast<size_t>(i)] = static_cast<int32_t>(int64_t{i} * 10000 / m);
  const auto tokens = spec::grouping::quantise_tokens(grouped.problem.input(0, 0), {});
  const auto expected = spec::grouping::lloyd(tokens, sample, k, 1, nullptr);
  for (const int32_t share : {64, 32, 16, 2}) {
    std::copy(start.begin(), start.end(), p.centroids);
    grouped.launcher.launch<Update>(group::Grid::item_each, p, group::ceil_div(k, share), 0, share);
    EXPECT_TRUE(std::equal(expected.values.begin(), expected.values.end(), p.centroids)) << share;
  }
}

// Two lists of rows (10,240 are listed at once), in the first of which nearly all rows have one
// centroid, so that sums in 16 bits are passed on before they overflow: channels below 64 are
// large. Others have no rows and stay, and the problems beside it have fewer centroids than a CTA.
TEST(GroupClusters, ACentroidMayHaveNearlyAllRowsOfSeveralLists) {
  using Update = group::Update<128>;
  constexpr int kD = 128;
  const GroupCase shape{.name = "",
                        .kind = spec::Grouping::kmeans,
                        .lens = {10400, 1, 129, 300},
                        .d = kD,
                        .values = tests::Values::zeros,
                        .sequences = true};
  GroupProblem problem(shape);
  const group::Request request = problem.request();
  const group::Layout layout(request, problem.layout_shape());
  Buffers buffers(layout);
  EmulatorLauncher launcher;
  group::run_passes(request, layout, problem.params(), buffers.scratch(), group::Part::scales,
                    launcher);
  const group::Params p =
      group::device_params(request, layout, problem.params(), buffers.scratch());
  launcher.launch<group::SampleRows>(group::Grid::item_each, p,
                                     p.n_problems * group::SampleRows::tiles(p));
  const auto size = static_cast<size_t>(layout.places / group::kRows * kD);
  tests::Random random(3);
  for (size_t i = 0; i < size; ++i) p.centroids[i] = static_cast<int8_t>(random.next() % 255 - 127);
  const std::vector<int8_t> start(p.centroids, p.centroids + size);
  std::vector<int8_t> expected = start;
  for (int64_t index = 0; index < p.n_problems; ++index) {
    const group::Problem x = group::problem_at(p, index);
    spec::grouping::Tokens tokens{.d_pad = kD, .values = {}, .segments = {}, .original = {}};
    std::vector<int32_t> rows, labels;
    for (int32_t row = 0; row < x.n; ++row) {
      for (int i = 0; i < kD; ++i) {
        const auto r = static_cast<int>(random.next() % 255);
        const int value = i < 64 ? 127 - r % 16 : r - 127;
        p.values[(x.row0 + row) * kD + i] = static_cast<int8_t>(value);
        tokens.values.push_back(static_cast<int16_t>(value));
      }
      rows.push_back(row);
      labels.push_back(row % 97 == 3 ? row / 97 % x.k / 3 * 3 : x.k / 2);
      p.labels[x.row0 + row] = labels.back();
    }
    if (x.n <= group::kRows) continue;  // no clusters
    spec::grouping::Centroids means{kD, {}};
    const auto first = static_cast<size_t>(x.block0 * kD), n = static_cast<size_t>(x.k * kD);
    for (size_t i = 0; i < n; ++i) means.values.push_back(start[first + i]);
    const std::vector<int32_t> counts = spec::grouping::update(tokens, rows, labels, &means);
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 0) > 0, x.k > 2);
    for (size_t i = 0; i < n; ++i) expected[first + i] = static_cast<int8_t>(means.values[i]);
  }
  EXPECT_EQ(Update::share(p.n_problems, p.max_blocks), 2);
  for (const int32_t share : {2, 8, 64}) {
    std::copy(start.begin(), start.end(), p.centroids);
    launcher.launch<Update>(group::Grid::item_each, p,
                            p.n_problems * group::ceil_div(p.max_blocks, share), 0, share);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), p.centroids)) << share;
  }
}

// 40 heads of 75,600 tokens; of 4,096; a Ulysses shard; one head; the ragged case.
TEST(GroupClusters, FewCentroidsAreSharedByMoreProcessors) {
  using Update = group::Update<128>;
  EXPECT_EQ(Update::share(40, 591), 64);
  EXPECT_EQ(Update::share(40, 32), 4);
  EXPECT_EQ(Update::share(5, 591), 8);
  EXPECT_EQ(Update::share(1, 8), 2);
  EXPECT_EQ(Update::share(90, 9), 4);
}

// Pairs of three passes over the same means, ascending.
template <int32_t kMostColumns, int32_t kTableRows>
std::vector<std::vector<std::pair<int32_t, int32_t>>> pairs_of(const group::Params& p) {
  using Propose = group::Propose<64, kMostColumns>;
  using Match = group::Match<64, kMostColumns, kTableRows>;
  EmulatorLauncher launcher;
  std::vector<std::vector<std::pair<int32_t, int32_t>>> out;
  for (int32_t pass = 0; pass < 3; ++pass) {
    launcher.launch<Propose>(group::Grid::item_each, p, p.n_problems * Propose::tiles(p), pass);
    launcher.launch<Match>(group::Grid::item_each, p, p.n_problems, pass);
    auto& pairs = out.emplace_back();
    for (int32_t i = 0; i < p.n_pairs[0]; ++i)
      pairs.emplace_back(p.pairs[2 * i], p.pairs[2 * i + 1]);
    std::sort(pairs.begin(), pairs.end());
  }
  return out;
}

// What is done with more blocks than fit shared memory, with few of them.
TEST(GroupMatch, ChunksOfColumnsGiveTheSamePairs) {
  Grouped grouped({.name = "", .lens = {10000}, .d = 64});
  const group::Params p = grouped.params();
  const auto expected = pairs_of<640, 96>(p);
  EXPECT_GT(expected[0].size(), 32u);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_EQ((pairs_of<640, 0>(p)), expected);  // never in a table
  EXPECT_EQ((pairs_of<640, 30>(p)), expected);
  EXPECT_EQ((pairs_of<32, 0>(p)), expected);
  EXPECT_EQ((pairs_of<32, 30>(p)), expected);
}

INSTANTIATE_TEST_SUITE_P(Cases, GroupKernels, testing::ValuesIn(tests::group_cases()), name_of);

// Units under a policy, step by step: orders, f_g, and what the state remembers.
void expect_steps(const GroupCase& shape, const core::Policy& policy,
                  const std::vector<int32_t>& steps, double noise, double growth,
                  const std::vector<int64_t>& without = {}) {
  GroupProblem problem(shape);
  int32_t step = 0;
  group::Request request = problem.request();
  const group::Layout layout(request, problem.layout_shape());
  Buffers buffers(layout);
  request.state = buffers.state();
  request.state_hash = 4;
  request.policy = policy;
  request.step = &step;
  const group::Params p =
      group::device_params(request, layout, problem.params(), buffers.scratch());
  *p.state = {group::kStateMagic, 4, layout.n_units, 0};
  std::fill_n(p.unit_state, layout.n_units, group::UnitState{});
  std::vector<uint8_t> regrouped(static_cast<size_t>(shape.b * shape.h));
  request.regrouped = regrouped.data();
  tests::PolicyReference reference(problem, policy);
  EmulatorLauncher launcher;
  for (size_t call = 0; call < steps.size(); ++call) {
    step = steps[call];
    SCOPED_TRACE("call " + std::to_string(call) + ", step " + std::to_string(step));
    problem.set_values(call, noise + growth * static_cast<double>(call));
    if (!without.empty()) problem.leave_out_keys_of(without[call]);
    reference.run(step);
    std::fill(regrouped.begin(), regrouped.end(), uint8_t{0});
    group::run_passes(request, layout, problem.params(), buffers.scratch(), group::Part::all,
                      launcher);
    const auto h = static_cast<size_t>(shape.h);
    for (size_t u = 0; u < static_cast<size_t>(layout.n_units); ++u) {
      const auto& expected = reference.unit(u);
      EXPECT_EQ(tests::compare_order(problem, u / h, static_cast<int64_t>(u % h), expected.order,
                                     p.out_order),
                "");
      EXPECT_EQ(p.units[u].f, expected.f);
      EXPECT_EQ(regrouped[u] != 0, expected.regrouped);
      EXPECT_EQ(p.unit_state[u].f_at_grouping, expected.history.f_at_grouping);
      EXPECT_EQ(p.unit_state[u].f_last, expected.history.f_last);
      EXPECT_EQ(p.unit_state[u].last_call_step, expected.history.last_call_step);
    }
  }
}

core::Policy default_policy(int32_t steps) {
  core::Policy policy;
  policy.steps = steps;
  policy.window = core::default_window(steps);
  return policy;
}

// The first quarter of the steps regroups, and nothing after it while the values stay what they
// are.
TEST(GroupPolicy, WindowIsTheFirstQuarter) {
  for (const int32_t steps : {1, 4, 16, 40, 50}) {
    SCOPED_TRACE(steps);
    const core::Policy policy = default_policy(steps);
    std::vector<int32_t> calls = {0};
    for (const int32_t step : {1, policy.window - 1, policy.window, policy.window + 1, steps - 1})
      if (step > calls.back() && step < steps) calls.push_back(step);
    expect_steps({.name = "", .lens = {400}, .d = 64}, policy, calls, 0.5, 0.0);
  }
}

TEST(GroupPolicy, DecayRegroupsOutsideTheWindow) {
  expect_steps({.name = "", .lens = {700, 200}, .b = 2, .h = 2, .d = 64, .mask = true},
               default_policy(4), {0, 1, 2, 3, 3}, 0.3, 0.4);
}

TEST(GroupPolicy, ReuseIdentityAndSharedBranches) {
  core::Policy policy = default_policy(8);
  policy.after = VCA_AFTER_REUSE;
  expect_steps({.name = "", .lens = {500}, .d = 64}, policy, {0, 1, 2, 5}, 0.3, 0.4);
  policy.after = VCA_AFTER_IDENTITY;
  expect_steps({.name = "", .lens = {500}, .d = 64}, policy, {0, 1, 2, 0}, 0.3, 0.1);
  policy.share_cfg = true;
  policy.refresh = 2;
  expect_steps({.name = "", .kind = spec::Grouping::kmeans, .lens = {500}, .d = 64}, policy,
               {0, 0, 1, 1}, 0.3, 0.1);
}

// More blocks than are watched: 300 of them, every fourth.
TEST(GroupPolicy, WatchesSomeOfManyBlocks) {
  core::Policy policy = default_policy(8);
  expect_steps({.name = "",
                .kind = spec::Grouping::cubes,
                .lens = {16 * 40 * 60, 700},
                .d = 24,
                .grid = {16, 40, 60}},
               policy, {0, 2, 3, 4}, 0.3, 0.5);
}

// A batch without keys: no order is formed, `regrouped` says so, and its state is what it was, on
// a first step, on a step that would have improved an order and on one that would have kept it.
// -1: no batch.
TEST(GroupPolicy, HeadsWithoutKeysAreLeftAlone) {
  GroupCase shape{.name = "", .lens = {270}, .b = 2, .d = 64, .mask = true};
  core::Policy policy = default_policy(40);
  expect_steps(shape, policy, {0, 1, 2, 3, 4}, 0.3, 0.0, {1, -1, 1, 0, -1});
  policy.window = 1;
  for (const auto after : {VCA_AFTER_REUSE, VCA_AFTER_REFRESH_ON_DECAY}) {
    policy.after = after;
    expect_steps(shape, policy, {0, 1, 2, 3, 3}, 0.3, 0.2, {1, -1, 1, -1, 0});
  }
  policy.after = VCA_AFTER_IDENTITY;
  shape.kind = spec::Grouping::kmeans;
  expect_steps(shape, policy, {0, 1, 1}, 0.3, 0.2, {1, 0, -1});
}

// A buffer that nobody has initialised is neither believed nor written.
TEST(GroupPolicy, ForeignStateIsLeftAlone) {
  GroupProblem problem({.name = "", .lens = {300}, .d = 64});
  const int32_t step = 0;
  group::Request request = problem.request();
  const group::Layout layout(request, problem.layout_shape());
  Buffers buffers(layout);
  const std::vector<uint8_t> before = buffers.state_bytes;
  request.state = buffers.state();
  request.step = &step;
  EmulatorLauncher launcher;
  group::run_passes(request, layout, problem.params(), buffers.scratch(), group::Part::all,
                    launcher);
  EXPECT_EQ(buffers.state_bytes, before);
  const group::Params p =
      group::device_params(request, layout, problem.params(), buffers.scratch());
  const auto expected = spec::group_head(problem.input(0, 0), {}, nullptr);
  EXPECT_EQ(tests::compare_order(problem, 0, 0, expected.order_by_segment, p.out_order), "");
}

}  // namespace
}  // namespace vca
