// SPDX-License-Identifier: Apache-2.0
// The parts of `vcattn bench` that its output cannot show to be right: inputs, sampled answers,
// medians, rows, wrong outputs, clock and power.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/vcattn/bench_inputs.hpp"
#include "tools/vcattn/bench_nvml.hpp"
#include "tools/vcattn/bench_output.hpp"
#include "tools/vcattn/bench_run.hpp"
#include "tools/vcattn/errors.hpp"

namespace vca::tools {
namespace {

using core::parse_problem;
using core::ProblemText;

// ---- inputs ----

std::vector<float> floats(const std::vector<uint8_t>& bytes) {
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// 196,608 independent normals: the mean has standard deviation 0.0023, the mean square 0.0032, the
// fourth moment 9.8^0.5 / 443 = 0.022. Five of each are allowed, and the moments of the 65,536
// quantiles, whose tails end at 4.33, lie within that of 1 and 3.
TEST(BenchInputs, AreStandardNormal) {
  const ProblemText p = parse_problem("b1 hq12 hkv3 sq128 skv128 d128 fp32");
  const std::vector<float> x = floats(normal_buffer(p, 0, 2));
  ASSERT_EQ(x.size(), 196608u);
  double moments[5] = {};
  for (const float value : x) {
    EXPECT_NE(value, 0.0f);
    for (int i = 1; i <= 4; ++i) moments[i] += std::pow(value, i) / static_cast<double>(x.size());
  }
  EXPECT_NEAR(moments[1], 0.0, 5 * 0.0023);
  EXPECT_NEAR(moments[2], 1.0, 5 * 0.0032);
  EXPECT_NEAR(moments[4], 3.0, 5 * 0.022);
}

// Rows, tensors and heads are unlike one another: the correlation of two independent sets of n
// normals has standard deviation n^-1/2.
TEST(BenchInputs, AreIndependent) {
  const ProblemText p = parse_problem("b1 hq2 hkv2 sq256 skv256 d128 fp32");
  const std::vector<float> q = floats(normal_buffer(p, 0, 1)), k = floats(normal_buffer(p, 1, 1)),
                           v = floats(normal_buffer(p, 2, 1));
  const auto correlation = [](const float* a, const float* b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
    return std::fabs(sum / static_cast<double>(n));
  };
  const size_t n = q.size(), head = n / 2, row = 128;
  const double limit = 5 / std::sqrt(static_cast<double>(head));
  EXPECT_LT(correlation(q.data(), k.data(), n), limit);
  EXPECT_LT(correlation(k.data(), v.data(), n), limit);
  EXPECT_LT(correlation(q.data(), q.data() + head, head), limit);
  EXPECT_LT(correlation(q.data(), q.data() + row, n - row), limit);
  EXPECT_LT(correlation(q.data(), q.data() + 1, n - 1), limit);
}

TEST(BenchInputs, DependOnTheLogicalPlaceAlone) {
  const ProblemText hnd = parse_problem("b2 hq3 hkv3 sq300 skv300 d40 bf16");
  for (const char* text :
       {"b2 hq3 hkv3 sq300 skv300 d40 bf16 nhd", "b2 hq3 hkv3 sq300 skv300 d40 bf16 fused"}) {
    const ProblemText other = parse_problem(text);
    for (int which = 0; which < 3; ++which) {
      const auto a_view = core::view_of(hnd, which), b_view = core::view_of(other, which);
      const auto a = normal_buffer(hnd, a_view.buffer, 1),
                 b = normal_buffer(other, b_view.buffer, 2);
      for (int64_t batch = 0; batch < 2; ++batch)
        for (int64_t h = 0; h < 3; ++h)
          for (int64_t s = 0; s < 300; ++s) {
            const auto at = [&](const core::ProblemView& v) {
              return static_cast<size_t>(
                  2 * (v.offset + batch * v.stride[0] + h * v.stride[1] + s * v.stride[2]));
            };
            ASSERT_EQ(std::memcmp(a.data() + at(a_view), b.data() + at(b_view), 80), 0) << text;
          }
    }
  }
}

// The sampled answer against the library's own FP64 attention, with heads that share keys and a key
// length: nothing but the rounding to FP32 lies between them (2^-24 of each element).
TEST(BenchInputs, SampledAnswerIsTheLibrarysExactOne) {
  const ProblemText p = parse_problem("b2 hq4 hkv2 sq50 skv90 d24 fp32 len61 nhd");
  std::vector<uint8_t> q = normal_buffer(p, 0, 2), k = normal_buffer(p, 1, 2),
                       v = normal_buffer(p, 2, 2), o(q.size());
  vca_attn_desc desc = vca_attn_desc_init();
  const auto tensor = [&](int which, std::vector<uint8_t>& data) {
    const core::ProblemView view = core::view_of(p, which);
    vca_tensor t = {data.data(), p.dtype, 0, {}, {}};
    std::copy(view.shape.begin(), view.shape.end(), t.shape);
    std::copy(view.stride.begin(), view.stride.end(), t.stride);
    return t;
  };
  desc.q = tensor(0, q);
  desc.k = tensor(1, k);
  desc.v = tensor(2, v);
  desc.o = tensor(0, o);
  desc.recipe = VCA_RECIPE_EXACT;
  const int32_t lens[2] = {61, 61};
  desc.kv_lens = lens;
  ASSERT_EQ(vca_attn_run(&desc, nullptr, 0, nullptr), VCA_OK) << vca_last_error();

  const SampledRows sample = exact_sample(p, 2);
  ASSERT_EQ(sample.places.size(), 32u);
  const core::ProblemView view = core::view_of(p, 0);
  std::vector<uint8_t> rows;
  for (const SampledRows::Place& at : sample.places) {
    const auto first =
        o.begin() + 4 * (at.b * view.stride[0] + at.h * view.stride[1] + at.s * view.stride[2]);
    rows.insert(rows.end(), first, first + 4 * p.d);
  }
  EXPECT_LE(relative_error(p, sample, rows).all, std::ldexp(1.0, -24));
  EXPECT_LE(relative_error(p, sample, rows).worst_head, std::ldexp(1.0, -24));
  // One head of four lost: half of the whole in the root mean square, all of its own.
  std::fill_n(rows.begin() + 8 * 4 * p.d, 8 * 4 * p.d, uint8_t{0});
  EXPECT_LT(relative_error(p, sample, rows).all, 0.7);
  EXPECT_NEAR(relative_error(p, sample, rows).worst_head, 1.0, 1e-12);
  std::fill(rows.begin(), rows.end(), uint8_t{0});
  EXPECT_EQ(relative_error(p, sample, rows).all, 1.0);
  EXPECT_NEAR(relative_error(p, sample, rows).worst_head, 1.0, 1e-12);
  std::fill(rows.end() - 4, rows.end(), uint8_t{0xFF});  // one NaN
  EXPECT_TRUE(std::isnan(relative_error(p, sample, rows).all));
  EXPECT_TRUE(std::isnan(relative_error(p, sample, rows).worst_head));
}

// ---- figures ----

TEST(BenchFigures, MedianOfOddAndEven) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({8, 1, 3, 2}), 2.5);
}

TEST(BenchFigures, TeraflopsByHand) {
  // 4 * 40 * 75600^2 * 128 = 1.1705e14 operations in 100 ms.
  EXPECT_NEAR(bench_tflops(parse_problem("b1 hq40 hkv40 sq75600 skv75600 d128 bf16"), 100.0),
              1170.505728, 1e-9);
  // Keys behind the key length are no work.
  EXPECT_NEAR(bench_tflops(parse_problem("b1 hq1 hkv1 sq1000 skv1000 d100 bf16 len500"), 1.0), 0.2,
              1e-12);
}

// A device that tells times of its own choice. Calls run on the CPU.
class FakePlace : public Place {
 public:
  bool lose_outputs = false;
  std::vector<double> times = {4, 1, 3, 2};
  size_t allocated = 0;

  int32_t device() const override { return -1; }
  std::string name() const override { return "fake"; }
  std::string driver() const override { return "1.2"; }
  std::string clock_source() const override { return "NVML"; }
  void* allocate(size_t bytes) override {
    allocated += 1;
    return cpu_->allocate(bytes);
  }
  void release(void* memory) noexcept override {
    allocated -= 1;
    cpu_->release(memory);
  }
  void upload(void* to, const void* from, size_t bytes) override { cpu_->upload(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override {
    cpu_->download(to, from, bytes);
    if (lose_outputs) std::memset(to, 0, bytes);
  }
  void run(const std::function<void(void*)>& call) override { call(nullptr); }
  Timing time(const TimingOptions& options, const std::function<void(void*)>& call,
              const std::function<void()>& tick) override {
    seen = options;
    call(nullptr);
    tick();
    return {times, 1650.0, 690.25};
  }
  TimingOptions seen;

 private:
  std::unique_ptr<Place> cpu_ = cpu_place(1);
};

BenchOptions small_options() {
  BenchOptions o;
  o.problems = select_problems({"b1 hq2 hkv2 sq70 skv256 d64 bf16"});
  o.recipes = {{"vc8", VCA_RECIPE_VC8, 0}, {"sage2-ours", VCA_RECIPE_SAGE2, 0}};
  o.quiet = true;
  return o;
}

TEST(BenchRun, RowsHoldWhatTheClockSaid) {
  FakePlace place;
  BenchOptions options = small_options();
  options.timing = {7, 31, 0.5};
  const BenchResult result = run_bench(place, options);
  ASSERT_EQ(result.rows.size(), 2u);
  EXPECT_EQ(place.seen.warmup, 7);
  EXPECT_EQ(place.seen.iterations, 31);
  EXPECT_EQ(place.seen.seconds, 0.5);
  EXPECT_EQ(place.allocated, 0u);  // all memory went back
  for (const BenchRow& row : result.rows) {
    EXPECT_STREQ(row.scope, "kernel");
    EXPECT_EQ(row.ms_median, 2.5);
    EXPECT_EQ(row.ms_min, 1);
    EXPECT_EQ(row.ms_max, 4);
    EXPECT_EQ(row.clock_mhz, 1650.0);
    EXPECT_GT(row.rel_error.value(), 1e-3);
    EXPECT_LT(row.rel_error.value(), 0.1);
  }
  EXPECT_TRUE(result.wrong.empty());

  BenchSetting setting = bench_setting(place, options);
  setting.on_gpu = true;
  const auto json =
      nlohmann::json::parse(bench_json(setting, options, result, "2026-11-30T01:02:03Z"));
  EXPECT_EQ(json["gpu"], "fake");
  EXPECT_EQ(json["driver"], "1.2");
  EXPECT_EQ(json["date"], "2026-11-30T01:02:03Z");
  EXPECT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][1]["impl"], "sage2-ours");
  EXPECT_EQ(json["rows"][1]["power_w"], 690.2);  // of 690.25; ties to even
  // 4 * 2 * 70 * 256 * 64 operations in 2.5 ms
  EXPECT_NEAR(json["rows"][0]["tflops"].get<double>(), 0.00367002, 1e-8);
}

TEST(BenchRun, WholeCallsComeWithEveryOrderOfValues) {
  FakePlace place;
  BenchOptions options = small_options();
  options.whole = true;
  options.groupings = {BenchGrouping::none, BenchGrouping::warm, BenchGrouping::cold};
  const BenchResult result = run_bench(place, options);
  std::map<std::string, std::string> rows;
  for (const BenchRow& row : result.rows) {
    rows[row.impl] += std::string(row.scope) + "/" + to_string(row.grouping) + " ";
    EXPECT_EQ(row.rel_error.has_value(), std::string(row.scope) != "prep");
  }
  EXPECT_EQ(rows["vc8"],
            "kernel/none prep/none whole/none prep/warm whole/warm prep/cold whole/cold ");
  // Not reordered, so there is nothing to be warm or cold; said once.
  EXPECT_EQ(rows["sage2-ours"], "kernel/none prep/none whole/none ");
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_NE(result.notes[0].find("sage2-ours keeps token order"), std::string::npos);
}

TEST(BenchRun, WrongOutputsAreFound) {
  FakePlace place;
  place.lose_outputs = true;
  const BenchResult result = run_bench(place, small_options());
  ASSERT_EQ(result.wrong.size(), 2u);
  EXPECT_NE(result.wrong[0].find("vc8"), std::string::npos);
}

TEST(BenchRun, RefusesWhatHasNoWork) {
  FakePlace place;
  BenchOptions options = small_options();
  options.problems = select_problems({"b1 hq2 hkv2 sq70 skv256 d64 bf16 len0"});
  EXPECT_THROW(run_bench(place, options), UserError);
}

// ---- the CPU's clock ----

TEST(BenchCpuPlace, CountsCalls) {
  const std::unique_ptr<Place> place = cpu_place(1);
  int calls = 0, ticks = 0;
  const auto call = [&](void* stream) {
    EXPECT_EQ(stream, nullptr);
    ++calls;
  };
  Timing t = place->time({3, 5, 0}, call, [&] { ++ticks; });
  EXPECT_EQ(calls, 8);
  EXPECT_EQ(ticks, 8);
  EXPECT_EQ(t.ms.size(), 5u);
  EXPECT_FALSE(t.clock_mhz.has_value() || t.power_w.has_value());
  // Time that has to be filled asks for more calls; a sleep never ends early.
  t = place->time(
      {0, 1, 0.02}, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); },
      [] {});
  EXPECT_GE(t.ms.size(), 1u);
  EXPECT_LE(t.ms.size(), 4u);
  for (const double ms : t.ms) EXPECT_GE(ms, 5.0);
}

// ---- clock and power ----

TEST(BenchNvml, MissingLibraryIsAReason) {
  const Nvml nvml("0000:1B:00.0", "libthere-is-no-such.so.1");
  EXPECT_NE(nvml.refusal().find("libthere-is-no-such.so.1"), std::string::npos);
  EXPECT_EQ(nvml.driver(), "");
  NvmlSampler sampler(nvml);
  const Nvml::Reading mean = sampler.stop();
  EXPECT_FALSE(mean.clock_mhz.has_value() || mean.power_w.has_value());
}

TEST(BenchNvml, AnotherLibraryIsAReason) {
  EXPECT_NE(Nvml("0000:1B:00.0", "libm.so.6").refusal().find("lacks"), std::string::npos);
}

TEST(BenchNvml, UnknownDeviceIsAReason) {
  EXPECT_NE(Nvml("0000:99:00.0", VCA_FAKE_NVML).refusal().find("0000:99:00.0"), std::string::npos);
}

TEST(BenchNvml, ReadsUnitsAndTakesTheMean) {
  const Nvml nvml("0000:1B:00.0", VCA_FAKE_NVML);
  EXPECT_EQ(nvml.refusal(), "");
  EXPECT_EQ(nvml.driver(), "580.159.04");
  const Nvml::Reading first = nvml.read(), second = nvml.read();
  EXPECT_EQ(second.clock_mhz.value() - first.clock_mhz.value(), 10);
  EXPECT_DOUBLE_EQ(second.power_w.value() - first.power_w.value(), 1);
  NvmlSampler sampler(nvml);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  const Nvml::Reading mean = sampler.stop();
  // The readings rise by 10 MHz and 1 W each: the mean of n of them lies (n - 1) / 2 steps above
  // the first, whatever n is.
  const double steps = (mean.clock_mhz.value() - second.clock_mhz.value()) / 10 - 1;
  EXPECT_GE(steps, 0);
  EXPECT_NEAR(mean.power_w.value() - second.power_w.value() - 1, steps, 1e-9);
  EXPECT_EQ(sampler.stop().clock_mhz, mean.clock_mhz);  // stopped
}

}  // namespace
}  // namespace vca::tools
