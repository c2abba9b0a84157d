// SPDX-License-Identifier: Apache-2.0
// Grouping on a GPU: permutations and f_g equal to the specification's, over the steps of a policy,
// in graphs, a hundred times the same; then the time of every kernel at the 720p shape.
//   group_test [--time-only | --test-only | --small]
// --small: what a sanitizer gets through, within VCA_TEST_SECONDS where that is set.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "device/group_device.cuh"
#include "device/group_timing.cuh"
#include "device/video_values.hpp"
#include "spec/grouping/kmeans.hpp"

namespace vca {
namespace {

using namespace kernels;
using tests::DeviceBytes;
using tests::GroupCase;
using tests::GroupProblem;
using tests::median_ms;
using tests::OnDevice;
using tests::print;
using tests::TimedLauncher;
using tests::to_host;
using tests::video_values;

int failures = 0;
void expect(bool ok, const std::string& what) {
  if (ok) return;
  ++failures;
  std::printf("FAILED %s\n", what.c_str());
}

// What there is no time for is left out and counted.
class Budget {
 public:
  explicit Budget(double seconds = std::numeric_limits<double>::infinity()) : seconds_(seconds) {}
  // Asked before each case.
  bool allows_another() {
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - begin_;
    if (gone.count() <= seconds_) return true;
    ++left_out_;
    return false;
  }
  int left_out() const { return left_out_; }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double seconds_;
  int left_out_ = 0;
};

void test_cases(const std::vector<GroupCase>& cases, Budget& budget) {
  int run = 0;
  for (const GroupCase& c : cases) {
    if (!budget.allows_another()) continue;
    ++run;
    GroupProblem problem(c);
    OnDevice device(problem, false);
    device.run();
    CHECK(cudaDeviceSynchronize());
    const auto order = device.order();
    const auto units = device.units();
    spec::GroupingParams params;
    params.kind = c.kind;
    for (size_t u = 0; u < units.size(); ++u) {
      const size_t sub = u / static_cast<size_t>(c.h);
      const auto head = static_cast<int64_t>(u) % c.h;
      const auto expected = spec::group_head(problem.input(sub, head), params, nullptr);
      const std::string wrong =
          tests::compare_order(problem, sub, head, expected.order_by_segment, order.data());
      expect(wrong.empty(), std::string(c.name) + ": " + wrong);
      expect(units[u].f == expected.f_g, std::string(c.name) + ": f_g");
    }
  }
  std::printf("cases: %d run, %d failures\n", run, failures);
}

// More blocks than fit the shared memory of one turn, in every kernel that has turns.
std::vector<GroupCase> large_cases() {
  using spec::Grouping;
  std::vector<GroupCase> c;
  for (const Grouping kind : {Grouping::vsmooth, Grouping::kdtree})
    c.push_back({.name = "860 blocks", .kind = kind, .lens = {110000}, .d = 64});
  c.push_back({.name = "860 blocks", .lens = {110000}, .d = 128});
  return c;
}

// Rows of a fused projection behind 2^32 bytes: the order must be that of the same rows side by
// side.
__global__ void fill_rows(uint16_t* near, uint16_t* far, int64_t rows, int64_t pitch) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * 128; i += step) {
    // A few hundred directions and noise, from a hash of the place.
    const int64_t row = i / 128, channel = i % 128;
    const auto hash = [](uint64_t x) {
      x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
      x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
      return static_cast<float>(static_cast<int32_t>(x >> 32)) * 0x1p-31f;
    };
    const float x = hash(static_cast<uint64_t>(row * 7 % 389) << 20 | channel) +
                    0.6f * hash(static_cast<uint64_t>(i) + (uint64_t{1} << 50));
    const auto bits = static_cast<uint16_t>(__float_as_uint(x) >> 16);
    near[i] = bits;
    far[row * pitch + channel] = bits;
  }
}
void test_far_rows() {
  constexpr int64_t kTokens = 320000, kPitch = 21504;
  GroupCase c{.name = "far rows", .lens = {kTokens}, .values = tests::Values::zeros};
  GroupProblem problem(c);
  DeviceBytes far(static_cast<size_t>(kTokens * kPitch * 2));
  std::vector<std::vector<int32_t>> orders;
  OnDevice near(problem, false);
  fill_rows<<<2048, 256>>>(static_cast<uint16_t*>(near.values->data()),
                           static_cast<uint16_t*>(far.data()), kTokens, kPitch);
  for (const bool is_far : {false, true}) {
    if (is_far) {
      near.from.v.data = far.data();
      near.from.v.stride_s = kPitch;
    }
    near.run();
    CHECK(cudaDeviceSynchronize());
    orders.push_back(near.order());
  }
  expect(orders[0] == orders[1], "far rows: another order than near ones");
  std::vector<char> seen(kTokens, 0);
  for (int64_t i = 0; i < kTokens; ++i)
    seen[static_cast<size_t>(orders[1][static_cast<size_t>(i)])] = 1;
  expect(std::count(seen.begin(), seen.end(), 1) == kTokens, "far rows: not a permutation");
  std::printf("far rows: f_g %.4f, %d failures\n", near.units()[0].f, failures);
}

void test_policies(const std::vector<int32_t>& clips, Budget& budget) {
  int run = 0;
  for (const int32_t steps : clips) {
    for (const int32_t after : {VCA_AFTER_REFRESH_ON_DECAY, VCA_AFTER_REUSE, VCA_AFTER_IDENTITY}) {
      if (!budget.allows_another()) continue;
      ++run;
      GroupProblem problem({.name = "policy", .lens = {700, 200}, .h = 2, .d = 64});
      core::Policy policy;
      policy.steps = steps;
      policy.window = core::default_window(steps);
      policy.after = after;
      OnDevice device(problem, true, policy);
      tests::PolicyReference reference(problem, policy);
      for (int32_t step = 0; step < std::min(steps, 16); ++step) {
        // Noise that grows makes an order decay.
        problem.set_values(static_cast<uint64_t>(step), 0.3 + 0.1 * step);
        device.set_values(problem);
        device.set_step(step);
        reference.run(step);
        device.run();
        CHECK(cudaDeviceSynchronize());
        const auto order = device.order();
        const auto units = device.units();
        for (size_t u = 0; u < units.size(); ++u) {
          const std::string wrong = tests::compare_order(
              problem, u / 2, static_cast<int64_t>(u % 2), reference.unit(u).order, order.data());
          const std::string name = std::to_string(steps) + " steps, after " +
                                   std::to_string(after) + ", step " + std::to_string(step) + ": ";
          expect(wrong.empty(), name + wrong);
          expect(units[u].f == reference.unit(u).f, name + "f_g");
        }
      }
    }
  }
  std::printf("policies: %d run, %d failures\n", run, failures);
}

// Where cold k-means on the device leaves the specification, step by step.
template <int kD>
void diagnose() {
  GroupProblem problem(
      {.name = "diagnose", .kind = spec::Grouping::kmeans, .lens = {1300}, .h = 2, .d = kD});
  OnDevice device(problem, false);
  device.run();
  group::Params p = device.params();
  group::StreamLauncher launcher(nullptr);
  p.iterations = 2;
  group::form_clusters<kD>(p, launcher);
  CHECK(cudaDeviceSynchronize());
  const auto values = to_host(p.values, static_cast<size_t>(device.layout.places) * kD);
  const auto labels = to_host(p.labels, static_cast<size_t>(device.layout.places));
  const auto centroids = to_host(p.centroids, static_cast<size_t>(device.layout.places) / 128 * kD);
  for (size_t h = 0; h < 2; ++h) {
    const auto tokens =
        spec::grouping::quantise_tokens(problem.input(0, static_cast<int64_t>(h)), {});
    std::vector<int32_t> rows(1300);
    for (int32_t i = 0; i < 1300; ++i) rows[static_cast<size_t>(i)] = i;
    const auto expected = spec::grouping::lloyd(tokens, rows, 11, 1, nullptr);
    spec::grouping::Centroids got{kD, {}};
    int wrong_values = 0, wrong_centroids = 0, wrong_labels = 0;
    for (size_t i = 0; i < 1300 * kD; ++i)
      wrong_values += values[h * 11 * 128 * kD + i] != tokens.values[i] ? 1 : 0;
    for (size_t i = 0; i < 11 * kD; ++i) {
      got.values.push_back(centroids[h * 11 * kD + i]);
      if (got.values.back() == expected.values[i]) continue;
      if (++wrong_centroids <= 4)
        std::printf("  centroid %zu channel %zu: %d, expected %d\n", i / kD, i % kD,
                    got.values.back(), expected.values[i]);
    }
    const auto again = spec::grouping::assign(tokens, rows, got);
    for (size_t i = 0; i < 1300; ++i)
      if (labels[h * 11 * 128 + i] != again[i] && ++wrong_labels <= 4)
        std::printf("  row %zu: label %d, expected %d\n", i, labels[h * 11 * 128 + i], again[i]);
    std::printf(
        "diagnose d %d head %zu: wrong values %d, centroids after one update %d, labels %d\n", kD,
        h, wrong_values, wrong_centroids, wrong_labels);
  }
}

uint64_t hash_of(const std::vector<int32_t>& x) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const int32_t v : x) h = (h ^ static_cast<uint32_t>(v)) * 0x100000001b3u;
  return h;
}

void video(bool test) {
  constexpr int64_t kHeads = 40, kFamilies = 3;
  GroupCase c{.name = "video", .lens = {75600}, .h = kHeads, .values = tests::Values::zeros};
  GroupProblem problem(c);
  {
    const auto values = video_values(kHeads, kFamilies);
    std::memcpy(problem.bytes.data(), values.data(), values.size() * 2);
  }
  core::Policy policy;
  policy.steps = 40;
  policy.window = 10;
  OnDevice cold(problem, false), stateful(problem, true, policy);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  const auto now = [] { return std::chrono::steady_clock::now(); };
  cold.run(stream);
  CHECK(cudaStreamSynchronize(stream));
  const auto order = cold.order();
  for (int64_t h = 0; h < kFamilies; ++h) {
    const auto begin = now();
    spec::GroupingParams params;
    const auto expected = spec::group_head(problem.input(0, h), params, nullptr);
    const std::string wrong =
        tests::compare_order(problem, 0, h, expected.order_by_segment, order.data());
    expect(wrong.empty(), "video: " + wrong);
    expect(cold.units()[static_cast<size_t>(h)].f == expected.f_g, "video: f_g");
    std::printf("head %lld: f %.4f, specification took %.2f s\n", static_cast<long long>(h),
                expected.f_g, std::chrono::duration<double>(now() - begin).count());
  }
  for (int i = 0; test && i < 100; ++i) {
    cold.run(stream);
    CHECK(cudaStreamSynchronize(stream));
    expect(hash_of(cold.order()) == hash_of(order), "video: run " + std::to_string(i) + " differs");
  }
  // One graph for every step: the step number lives on the device.
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  stateful.run(stream);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  stateful.set_step(0);
  CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));
  {  // the next step groups again, so this one makes fewer passes
    spec::GroupingParams params;
    params.followed = true;
    const auto expected = spec::group_head(problem.input(0, 0), params, nullptr);
    const auto first = stateful.order();
    const std::string wrong =
        tests::compare_order(problem, 0, 0, expected.order_by_segment, first.data());
    expect(wrong.empty(), "video: graph, step 0: " + wrong);
  }
  std::vector<double> first_f;
  for (const group::Unit& u : stateful.units()) first_f.push_back(u.f);
  stateful.set_step(1);
  CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));
  if (test) {
    double before = 0, after = 0;
    const auto units = stateful.units();
    for (size_t h = 0; h < kFamilies; ++h) {
      before += first_f[h];
      after += units[h].f;
      expect(units[h].start == group::Start::warm, "video: step 1 is warm");
    }
    expect(after >= before, "video: f after a warm step");
  }

  TimedLauncher timed(stream);
  group::run_passes(cold.request, cold.layout, cold.from, cold.scratch->data(), group::Part::all,
                    timed);
  timed.sums();
  group::run_passes(cold.request, cold.layout, cold.from, cold.scratch->data(), group::Part::all,
                    timed);
  print("cold", timed);
  const auto forget = [&] {
    CHECK(group::reset_state(stateful.state->data(), static_cast<int64_t>(stateful.state->size()),
                             stream));
  };
  stateful.set_step(0);
  forget();
  group::run_passes(stateful.request, stateful.layout, stateful.from, stateful.scratch->data(),
                    group::Part::all, timed);
  print("first step", timed);
  stateful.set_step(2);
  group::run_passes(stateful.request, stateful.layout, stateful.from, stateful.scratch->data(),
                    group::Part::all, timed);
  print("warm", timed);
  stateful.set_step(20);
  group::run_passes(stateful.request, stateful.layout, stateful.from, stateful.scratch->data(),
                    group::Part::all, timed);
  print("keep", timed);

  std::printf("whole: cold %.4f ms\n",
              static_cast<double>(median_ms(stream, 15, [&] { cold.run(stream); })));
  stateful.set_step(0);
  std::printf("whole: first step, in a graph %.4f ms\n",
              static_cast<double>(median_ms(stream, 15, [&] {
                forget();
                CHECK(cudaGraphLaunch(exec, stream));
              })));
  for (const int32_t step : {3, 21}) {
    stateful.set_step(step);
    std::printf(
        "whole: %s %.4f ms, in a graph %.4f ms\n", step < 10 ? "warm" : "keep",
        static_cast<double>(median_ms(stream, 15, [&] { stateful.run(stream); })),
        static_cast<double>(median_ms(stream, 15, [&] { CHECK(cudaGraphLaunch(exec, stream)); })));
  }
  std::printf("scratch %.1f MB, state %.1f MB\n", static_cast<double>(cold.layout.bytes) / 1e6,
              static_cast<double>(stateful.state->size()) / 1e6);
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
}

// The states' kernels first, so that whatever time there is, they are seen.
void test_small() {
  const char* const seconds = std::getenv("VCA_TEST_SECONDS");
  Budget budget = seconds != nullptr ? Budget(std::atof(seconds)) : Budget();
  test_policies({4, 1}, budget);
  test_cases(tests::group_cases(), budget);
  std::printf("note: %d cases left out\n", budget.left_out());
}

void test_all() {
  Budget all;
  diagnose<64>();
  diagnose<128>();
  test_cases(tests::group_cases(), all);
  test_cases(large_cases(), all);
  test_far_rows();
  test_policies({1, 4, 16, 40, 50}, all);
}

}  // namespace
}  // namespace vca

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "--small")
    vca::test_small();
  else if (what != "--time-only")
    vca::test_all();
  if (what != "--small") vca::video(what != "--time-only");
  std::printf(vca::failures == 0 ? "group_test: passed\n" : "group_test: FAILED\n");
  return vca::failures == 0 ? 0 : 1;
}
