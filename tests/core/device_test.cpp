// SPDX-License-Identifier: Apache-2.0
// Tensors on a CUDA device, as far as a machine without one can tell: what is refused and why, and
// that nothing of a device is read on the host. What runs is tested by tests/device/capi_*.cpp.
#include <algorithm>
#include <string_view>

#include "core/break_even.hpp"
#include "core/status.hpp"
#include "gpu/backend.hpp"
#include "spec/attention.hpp"
#include "tests/core/support.hpp"

namespace vca::test {
namespace {

constexpr const char* kNoKernels = "this build has no CUDA kernels";

// Any use of such an address ends the program.
template <class T>
T* on_device(uintptr_t at) {
  return reinterpret_cast<T*>(at);
}

struct DeviceCall : Call {
  explicit DeviceCall(const Shape& s = {2, 2, 1, 8, 24, 64}) : Call(s) {
    desc.device = 0;
    desc.q.data = on_device<void>(0x10000);
    desc.k.data = on_device<void>(0x20000);
    desc.v.data = on_device<void>(0x30000);
    desc.o.data = on_device<void>(0x40000);
    desc.lse = on_device<float>(0x50000);
    desc.kv_lens = on_device<const int32_t>(0x60000);
    desc.key_mask = on_device<const uint8_t>(0x70000);
    desc.recipe = VCA_RECIPE_VC8;
    desc.grouping = VCA_GROUPING_IDENTITY;
  }
};

std::string explain(const vca_attn_desc& desc) {
  std::string text(4096, '\0');
  expect_ok(vca_attn_explain(&desc, text.data(), text.size(), nullptr));
  return text.c_str();
}

// The line of one kernel.
std::string line(const std::string& text, const std::string& kernel) {
  const size_t at = text.find(kernel + ": ");
  if (at == std::string::npos) return "";
  return text.substr(at, text.find('\n', at) - at);
}

std::vector<vca_status> every_call(const vca_attn_desc& desc) {
  vca_attn_info info{};
  info.struct_size = sizeof(info);
  size_t bytes = 0;
  void* const workspace = on_device<void>(0x100000);
  const size_t size = size_t{1} << 30;
  return {vca_attn_query(&desc, &info), vca_attn_workspace(&desc, &bytes),
          vca_attn_prepare(&desc, workspace, size, nullptr),
          vca_attn_attend(&desc, workspace, size, nullptr),
          vca_attn_run(&desc, workspace, size, nullptr)};
}

void refused_everywhere(const vca_attn_desc& desc, const std::string& reason) {
  for (const vca_status status : every_call(desc))
    expect_refused(status, VCA_ERR_UNSUPPORTED, {gpu::built() ? reason : kNoKernels, "hint"});
  const std::string text = explain(desc);
  EXPECT_EQ(text.find("chosen"), std::string::npos) << text;
  EXPECT_NE(line(text, "sm90").find("refused: " + (gpu::built() ? reason : kNoKernels)),
            std::string::npos)
      << text;
}

TEST(Device, RecipesWithoutAKernel) {
  for (const spec::Recipe& r : spec::kRecipes) {
    const std::string_view has[] = {"vc8", "vc8-turbo", "vc8-paper", "vc8-exp", "sage2", "fp8"};
    if (std::find(std::begin(has), std::end(has), r.name) != std::end(has)) continue;
    DeviceCall c;
    c.desc.recipe = static_cast<int32_t>(r.id);
    refused_everywhere(c.desc, "recipe " + std::string(r.name) + " has no sm_90 kernel");
  }
}

TEST(Device, StateAndPolicy) {
  DeviceCall c;
  c.desc.state = on_device<void>(0x80000);
  c.desc.step = on_device<const int32_t>(0x90000);
  vca_policy policy{};
  policy.struct_size = sizeof(policy);
  c.desc.policy = &policy;
  // Nothing about them is refused: what remains is that this machine has no such device.
  core::Request request = core::validate(&c.desc, core::Use::explain);
  request.target = spec::Target::sm90;
  EXPECT_EQ(gpu::refusal(request).find("state"), std::string::npos);
}

TEST(Device, CheckFinite) {
  DeviceCall c;
  c.desc.flags = VCA_CHECK_FINITE;
  refused_everywhere(c.desc, "VCA_CHECK_FINITE: the answer needs a synchronisation");
}

TEST(Device, Targets) {
  DeviceCall c;
  c.desc.target = VCA_TARGET_SM100;
  refused_everywhere(c.desc, "target sm100 was asked for");
  c.desc.target = VCA_TARGET_CPU;
  refused_everywhere(c.desc, "target cpu was asked for");
}

TEST(Device, OddOutputAddress) {
  DeviceCall c;
  c.desc.o.data = on_device<void>(0x40002);
  refused_everywhere(c.desc, "o.data is not 4-byte aligned");
}

TEST(Device, RemovedEnergyOfSequences) {
  DeviceCall c({1, 2, 1, 24, 24, 64});
  const vca_segment segments[] = {{0, 10, VCA_SEGMENT_SEQUENCE, 0},
                                  {10, 14, VCA_SEGMENT_SEQUENCE, 0}};
  c.desc.segments = segments;
  c.desc.n_segments = 2;
  c.desc.energy_removed = on_device<float>(0xA0000);
  refused_everywhere(c.desc, "energy_removed with SEQUENCE segments");
}

// The table's own row, so that a measured threshold needs no change here.
int64_t min_tokens(int head_dim, core::Ordering ordering) {
  for (const core::BreakEven& row : core::kBreakEven)
    if (row.target == spec::Target::sm90 && row.head_dim == head_dim && row.ordering == ordering)
      return row.min_tokens;
  ADD_FAILURE() << "no row";
  return 0;
}

TEST(Device, AutoDeclinesShortCalls) {
  const int64_t least = min_tokens(64, core::Ordering::token);
  const auto declines = [](int32_t recipe, int64_t s_q, int64_t s_kv) {
    DeviceCall c({1, 1, 1, 1, 1, 64});
    c.desc.recipe = recipe;
    c.desc.q.shape[2] = s_q;
    c.desc.k.shape[2] = c.desc.v.shape[2] = s_kv;
    core::Request request = core::validate(&c.desc, core::Use::explain);
    request.target = spec::Target::sm90;  // which a build without kernels does not resolve to
    return core::auto_declines(request);
  };
  EXPECT_EQ(declines(VCA_RECIPE_AUTO, least, least), "");
  for (const auto& [s_q, s_kv] : {std::pair{least - 1, least}, {least, least - 1}, {1, 1}}) {
    const std::string reason = declines(VCA_RECIPE_AUTO, s_q, s_kv);
    for (const std::string& word :
         {"recipe auto declines " + std::to_string(s_q) + " queries",
          std::to_string(s_kv) + " keys", "below " + std::to_string(least),
          std::string("a named recipe runs at any length")})
      EXPECT_NE(reason.find(word), std::string::npos) << reason;
    EXPECT_EQ(declines(VCA_RECIPE_VC8, s_q, s_kv), "");
  }
  EXPECT_EQ(declines(VCA_RECIPE_AUTO, 0, 5), "");
  EXPECT_EQ(declines(VCA_RECIPE_AUTO, 5, 0), "");
  // Every padded head_dim of the target has a row for every ordering.
  for (const int d : {64, 128})
    for (const auto ordering : {core::Ordering::token, core::Ordering::kept, core::Ordering::anew})
      EXPECT_EQ(std::count_if(std::begin(core::kBreakEven), std::end(core::kBreakEven),
                              [&](const core::BreakEven& row) {
                                return row.target == spec::Target::sm90 && row.head_dim == d &&
                                       row.ordering == ordering;
                              }),
                1);
}

TEST(Device, AutoCountsWhatTheOrderOfValuesCosts) {
  DeviceCall c;
  c.desc.recipe = VCA_RECIPE_AUTO;
  const auto ordering = [&c] {
    return core::ordering_of(core::validate(&c.desc, core::Use::explain));
  };
  EXPECT_EQ(ordering(), core::Ordering::token);  // identity was asked for
  c.desc.grouping = VCA_GROUPING_AUTO;
  EXPECT_EQ(ordering(), core::Ordering::anew);
  c.desc.state = on_device<void>(0x80000);
  EXPECT_EQ(ordering(), core::Ordering::kept);
  c.desc.recipe = VCA_RECIPE_SAGE2;  // has no block means to order for
  EXPECT_EQ(ordering(), core::Ordering::token);
}

TEST(Device, AutoDeclinesNothingWhereItIsToldSo) {
  DeviceCall c;
  c.desc.recipe = VCA_RECIPE_AUTO;
  core::Request request = core::validate(&c.desc, core::Use::explain);
  request.target = spec::Target::sm90;
  EXPECT_NE(core::auto_declines(request), "");
  setenv(core::kAutoVariable, "always", 1);
  EXPECT_EQ(core::auto_declines(request), "");
  setenv(core::kAutoVariable, "sometimes", 1);
  EXPECT_THROW(core::auto_declines(request), core::Failure);
  unsetenv(core::kAutoVariable);
}

TEST(Device, AutoDeclinesIsARefusalEverywhere) {
  DeviceCall c;
  c.desc.recipe = VCA_RECIPE_AUTO;
  refused_everywhere(c.desc, "recipe auto declines 8 queries and 24 keys");
}

// The longest sequence counts, not the whole buffer.
TEST(Device, AutoLooksAtTheLongestSequence) {
  const int64_t least = min_tokens(64, core::Ordering::token);
  for (const int64_t first : {least - 1, least}) {
    DeviceCall c({1, 1, 1, 1, 1, 64});
    c.desc.recipe = VCA_RECIPE_AUTO;
    const int64_t all = first + least - 2;
    c.desc.q.shape[2] = c.desc.k.shape[2] = c.desc.v.shape[2] = all;
    const vca_segment segments[] = {{0, first, VCA_SEGMENT_SEQUENCE, 0},
                                    {first, all - first, VCA_SEGMENT_SEQUENCE, 0}};
    c.desc.segments = segments;
    c.desc.n_segments = 2;
    core::Request request = core::validate(&c.desc, core::Use::explain);
    request.target = spec::Target::sm90;
    EXPECT_EQ(core::auto_declines(request).empty(), first >= least);
  }
}

TEST(Device, BlockMask) {
  DeviceCall c;
  c.desc.block_mask = on_device<const uint8_t>(0xB0000);
  refused_everywhere(c.desc, "block_mask is not on sm_90 in this version");
}

TEST(Device, NoSuchDevice) {
  DeviceCall c;
  c.desc.device = 4000;
  const std::string text = explain(c.desc);
  EXPECT_NE(line(text, "cpu/portable").find("the tensors are on CUDA device 4000"),
            std::string::npos)
      << text;
  const std::string sm90 = line(text, "sm90");
  // With a driver the ordinal is refused; without one the driver's own reason is passed on.
  const bool driver = sm90.find("there is no CUDA device 4000") != std::string::npos;
  const std::string reason =
      driver ? "there is no CUDA device 4000" : "the driver offers no device (cuda";
  refused_everywhere(c.desc, reason);
  c.desc.device = -2;
  if (gpu::built())
    expect_refused(vca_attn_run(&c.desc, nullptr, 0, nullptr), VCA_ERR_INVALID_ARGUMENT,
                   {"device is no CUDA ordinal", "got -2"});
}

TEST(Device, HostOnlyFunctions) {
  DeviceCall c;
  const auto host = [](vca_status status) {
    expect_refused(status, VCA_ERR_UNSUPPORTED,
                   {gpu::built() ? "host memory" : kNoKernels, "hint"});
  };
  int64_t n = 0;
  uint64_t memory[8] = {};
  vca_ref_io io{};
  io.struct_size = sizeof(io);
  host(vca_ref_attn(&c.desc, VCA_TARGET_SM90, 0, 0, 0, 1, &io));
  host(vca_ref_blocks(&c.desc, 0, &n, &n));
  host(vca_group_state_load(&c.desc, memory, sizeof(memory), memory, sizeof(memory)));
}

TEST(Device, HostTensorsWithACudaTarget) {
  Call c({1, 2, 1, 8, 24, 64});
  c.desc.target = VCA_TARGET_SM90;
  expect_refused(c.run(), VCA_ERR_UNSUPPORTED,
                 {gpu::built() ? "the tensors are in host memory" : kNoKernels, "sm90"});
  c.desc.target = VCA_TARGET_AUTO;
  const std::string text = explain(c.desc);
  EXPECT_NE(line(text, "sm90")
                .find(gpu::built() ? "refused: the tensors are in host memory" : kNoKernels),
            std::string::npos)
      << text;
  EXPECT_NE(line(text, "sm100").find(gpu::built() ? "no kernel in this version" : kNoKernels),
            std::string::npos)
      << text;
}

TEST(Device, GroupingsWithoutKernelsAreRefused) {
  DeviceCall balanced;
  balanced.desc.grouping = VCA_GROUPING_BALANCED;
  refused_everywhere(balanced.desc, "grouping balanced has no kernels");
  for (const auto& [asked, kind] : {std::pair{VCA_GROUPING_DEFAULT, spec::Grouping::automatic},
                                    std::pair{VCA_GROUPING_KDTREE, spec::Grouping::kdtree},
                                    std::pair{VCA_GROUPING_KMEANS, spec::Grouping::kmeans},
                                    std::pair{VCA_GROUPING_IDENTITY, spec::Grouping::identity}}) {
    DeviceCall c;
    c.desc.grouping = asked;
    core::Request request = core::validate(&c.desc, core::Use::explain);
    EXPECT_EQ(request.problem.grouping, kind);
    request.target = spec::Target::sm90;
    EXPECT_EQ(gpu::refusal(request).find("grouping"), std::string::npos);
  }
}

// 7,000 blocks are the most that the counting sort takes.
TEST(Device, GroupingOfMoreBlocksThanFitIsRefused) {
  DeviceCall c({1, 1, 1, 8, 64, 64});
  c.desc.grouping = VCA_GROUPING_VSMOOTH;
  for (const int64_t blocks : {7000, 7001}) {
    c.desc.k.shape[2] = c.desc.v.shape[2] = blocks * 128;
    core::Request request = core::validate(&c.desc, core::Use::explain);
    request.target = spec::Target::sm90;
    if (gpu::built()) {
      EXPECT_EQ(gpu::refusal(request).find("grouping a segment in 7001 buckets") == 0,
                blocks == 7001);
    }
  }
}

core::Request expanded(DeviceCall& c, const std::vector<vca_segment>& segments) {
  c.desc.segments = segments.data();
  c.desc.n_segments = static_cast<int64_t>(segments.size());
  return core::validate(&c.desc, core::Use::explain);
}

void expect_subs(const core::Request& got, const std::vector<core::KeyRange>& ranges,
                 const std::vector<core::DeviceSub>& subs) {
  EXPECT_TRUE(got.problem.subs.empty());
  ASSERT_EQ(got.key_ranges.size(), ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(got.key_ranges[i].begin, ranges[i].begin);
    EXPECT_EQ(got.key_ranges[i].len, ranges[i].len);
  }
  ASSERT_EQ(got.device_subs.size(), subs.size());
  for (size_t i = 0; i < subs.size(); ++i) {
    const core::DeviceSub &a = got.device_subs[i], &b = subs[i];
    EXPECT_EQ(a.batch, b.batch) << i;
    EXPECT_EQ(a.q_begin, b.q_begin) << i;
    EXPECT_EQ(a.q_len, b.q_len) << i;
    EXPECT_EQ(a.n_ranges, b.n_ranges) << i;
    if (b.n_ranges > 0) {
      EXPECT_EQ(a.first_range, b.first_range) << i;
    }
  }
}

TEST(Device, SegmentsBecomeKeyRanges) {
  DeviceCall whole({2, 2, 1, 8, 24, 64});
  expect_subs(core::validate(&whole.desc, core::Use::explain), {{0, 24}},
              {{0, 0, 8, 0, 1}, {1, 0, 8, 0, 1}});
  DeviceCall mixed({2, 2, 1, 8, 24, 64});
  expect_subs(expanded(mixed, {{0, 10, VCA_SEGMENT_VIDEO, 0},
                               {10, 5, VCA_SEGMENT_PADDING, 0},
                               {15, 0, VCA_SEGMENT_TEXT, 0},
                               {15, 9, VCA_SEGMENT_TEXT, 0}}),
              {{0, 10}, {15, 9}}, {{0, 0, 8, 0, 2}, {1, 0, 8, 0, 2}});
  DeviceCall none({1, 2, 1, 8, 24, 64});
  expect_subs(expanded(none, {{0, 24, VCA_SEGMENT_PADDING, 0}}), {}, {{0, 0, 8, 0, 0}});
}

TEST(Device, SequencesBecomeSubProblems) {
  DeviceCall c({2, 2, 1, 24, 24, 64});
  expect_subs(expanded(c, {{0, 10, VCA_SEGMENT_SEQUENCE, 0},
                           {10, 5, VCA_SEGMENT_PADDING, 0},
                           {15, 0, VCA_SEGMENT_SEQUENCE, 0},
                           {15, 9, VCA_SEGMENT_SEQUENCE, 0}}),
              {{0, 10}, {15, 9}},
              {{0, 0, 10, 0, 1},
               {0, 10, 5, 0, 0},
               {0, 15, 9, 1, 1},
               {1, 0, 10, 0, 1},
               {1, 10, 5, 0, 0},
               {1, 15, 9, 1, 1}});
}

// With the driver's help only; elsewhere the calls above were refused before they reached it.
TEST(Device, WithoutADeviceTheDriverSaysWhy) {
  DeviceCall c;
  const std::string sm90 = line(explain(c.desc), "sm90");
  if (sm90.find("the driver offers no device") == std::string::npos && gpu::built())
    GTEST_SKIP() << "this machine has a CUDA device";
  refused_everywhere(c.desc, "the driver offers no device (cuda");
}

}  // namespace
}  // namespace vca::test
