// SPDX-License-Identifier: Apache-2.0
// Names, query, explain, workspace and the prepare/attend split.
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <thread>
#include <type_traits>

#include "core/names.hpp"
#include "core/workspace.hpp"
#include "gpu/backend.hpp"
#include "tests/core/support.hpp"

namespace vca::test {
namespace {

TEST(Names, RoundTripAndAgreeWithTheSpecification) {
  for (const spec::Recipe& r : spec::kRecipes) {
    int32_t recipe = -1, hadamard = -1;
    expect_ok(vca_recipe_parse(std::string(r.name).c_str(), &recipe, &hadamard));
    EXPECT_EQ(recipe, static_cast<int32_t>(r.id));
    EXPECT_EQ(hadamard, 0);
    EXPECT_EQ(vca_recipe_str(recipe), r.name);
    expect_ok(vca_recipe_parse((std::string(r.name) + "+had").c_str(), &recipe, &hadamard));
    EXPECT_EQ(hadamard, 1);
  }
  EXPECT_EQ(vca_recipe_str(VCA_RECIPE_VC4_INT8QK + 1), nullptr);
  for (int32_t g = VCA_GROUPING_DEFAULT; g <= VCA_GROUPING_AUTO; ++g) {
    int32_t parsed = -1;
    expect_ok(vca_grouping_parse(vca_grouping_str(g), &parsed));
    EXPECT_EQ(parsed, g);
  }
  EXPECT_EQ(vca_grouping_str(8), nullptr);
  for (int32_t t = VCA_TARGET_AUTO; t <= VCA_TARGET_SM120; ++t) {
    int32_t parsed = -1;
    expect_ok(vca_target_parse(vca_target_str(t), &parsed));
    EXPECT_EQ(parsed, t);
  }
  EXPECT_EQ(vca_target_str(7), nullptr);
  for (int32_t s = VCA_OK; s <= VCA_ERR_INTERNAL; ++s)
    EXPECT_STRNE(vca_status_str(static_cast<vca_status>(s)), "unknown status");
}

vca_attn_info query(const Call& c) {
  vca_attn_info info{};
  info.struct_size = sizeof(info);
  expect_ok(vca_attn_query(&c.desc, &info));
  return info;
}

TEST(Query, ResolvesDefaults) {
  Call c({1, 1, 1, 8, 8, 64});
  vca_attn_info info = query(c);
  EXPECT_EQ(info.recipe, VCA_RECIPE_VC8);
  EXPECT_EQ(info.grouping, VCA_GROUPING_AUTO);
  EXPECT_EQ(info.target, VCA_TARGET_CPU);
  EXPECT_EQ(info.hadamard, 0);
  EXPECT_EQ(std::string(info.kernel), "cpu/" + usable_isas().front());
  EXPECT_STREQ(info.evidence, "specification");
  EXPECT_GT(info.workspace_bytes, 0u);
  c.desc.recipe = VCA_RECIPE_VC8_PAPER;
  info = query(c);
  EXPECT_EQ(info.hadamard, 1);
  EXPECT_EQ(info.grouping, VCA_GROUPING_KMEANS);
  // Recipes without V-Smooth are never reordered, whatever is asked for, and the info says so.
  c.desc.recipe = VCA_RECIPE_SAGE2;
  c.desc.grouping = VCA_GROUPING_KDTREE;
  EXPECT_EQ(query(c).grouping, VCA_GROUPING_IDENTITY);
}

TEST(Query, InfoNeedsItsSize) {
  Call c({1, 1, 1, 8, 8, 64});
  vca_attn_info info{};
  expect_refused(vca_attn_query(&c.desc, &info), VCA_ERR_INVALID_ARGUMENT,
                 {"vca_attn_info.struct_size", "got 0"});
  expect_refused(vca_attn_query(&c.desc, nullptr), VCA_ERR_INVALID_ARGUMENT, {"info is NULL"});
}

TEST(Query, NeedsNoTensorData) {
  Call c({1, 2, 2, 300, 300, 128});
  const size_t with_data = query(c).workspace_bytes;
  for (vca_tensor* t : {&c.desc.q, &c.desc.k, &c.desc.v, &c.desc.o}) t->data = nullptr;
  EXPECT_EQ(query(c).workspace_bytes, with_data);
}

std::string explain(const vca_attn_desc& desc) {
  size_t needed = 0;
  expect_ok(vca_attn_explain(&desc, nullptr, 0, &needed));
  std::string text(needed, '?');
  expect_ok(vca_attn_explain(&desc, text.data(), text.size(), &needed));
  EXPECT_EQ(text.back(), '\0');
  text.pop_back();
  return text;
}

TEST(Explain, ListsEveryCandidateOnce) {
  Call c({1, 1, 1, 8, 8, 64});
  const std::string text = explain(c.desc);
  for (const char* kernel :
       {"cpu/avx512: ", "cpu/avx2: ", "cpu/portable: ", "sm90: refused: ", "sm89: refused: ",
        "sm100: refused: ", "sm103: refused: ", "sm120: refused: "})
    EXPECT_NE(text.find(kernel), std::string::npos) << text;
  const size_t chosen = text.find(": chosen");
  ASSERT_NE(chosen, std::string::npos) << text;
  EXPECT_EQ(text.find(": chosen", chosen + 1), std::string::npos) << text;
  EXPECT_NE(text.find(gpu::built() ? "in host memory" : "no CUDA kernels"), std::string::npos);
}

TEST(Explain, SaysWhyNothingRuns) {
  Call c({1, 1, 1, 8, 8, 64});
  c.desc.target = VCA_TARGET_SM90;
  const std::string text = explain(c.desc);
  EXPECT_EQ(text.find("chosen"), std::string::npos) << text;
  EXPECT_NE(text.find("cpu/portable: refused: target sm90"), std::string::npos) << text;
  c.desc.target = VCA_TARGET_AUTO;
  c.desc.device = 3;
  EXPECT_NE(explain(c.desc).find("CUDA device 3"), std::string::npos);
}

TEST(Explain, NamesTheForcedUnitAndTruncates) {
  Call c({1, 1, 1, 8, 8, 64});
  const ForcedIsa forced("portable");
  EXPECT_NE(explain(c.desc).find("cpu/portable: chosen"), std::string::npos);
  char small[8] = "xxxxxxx";
  expect_ok(vca_attn_explain(&c.desc, small, sizeof(small), nullptr));
  EXPECT_EQ(std::strlen(small), 7u);
}

TEST(Threads, TwoCallersAtOnce) {
  Call a({1, 2, 2, 200, 200, 64}, VCA_BF16, Layout::hnd, 1);
  Call b({1, 2, 2, 190, 210, 80}, VCA_FP16, Layout::nhd, 9);
  a.desc.num_threads = b.desc.num_threads = 1;
  b.desc.recipe = VCA_RECIPE_VC8_HQ;
  expect_ok(a.run());
  expect_ok(b.run());
  const std::vector<uint8_t> want_a = a.o.bytes(), want_b = b.o.bytes();
  const auto loop = [](Call& c, const std::vector<uint8_t>& want, int* bad) {
    for (int i = 0; i < 10; ++i) {
      std::fill(c.o.bytes().begin(), c.o.bytes().end(), uint8_t{0});
      if (c.run() != VCA_OK || c.o.bytes() != want) ++*bad;
      vca_attn_desc broken = c.desc;
      broken.recipe = 99;
      // The message belongs to the thread that failed.
      if (vca_attn_run(&broken, nullptr, 0, nullptr) != VCA_ERR_INVALID_ARGUMENT ||
          std::strstr(vca_last_error(), "recipe") == nullptr)
        ++*bad;
    }
  };
  int bad[2] = {};
  std::thread other(loop, std::ref(b), std::cref(want_b), &bad[1]);
  loop(a, want_a, &bad[0]);
  other.join();
  EXPECT_EQ(bad[0], 0);
  EXPECT_EQ(bad[1], 0);
}

#if defined(__SSE2__)
// A framework may flush subnormals or round another way in the calling thread: neither changes a
// bit, and the caller gets its own setting back.
TEST(Threads, TheCallersFloatEnvironmentDoesNotMatter) {
  constexpr unsigned kFlushAndRoundUp = 0x1F80 | 0x8040 | 0x4000;
  Call c({1, 2, 2, 130, 300, 64}, VCA_FP32);
  c.q.fill_normal(1, 1e-3f);
  c.v.fill_normal(3, 1e-38f);  // subnormal products everywhere
  c.with_lse();
  expect_ok(c.run());
  const std::vector<uint8_t> want = c.o.bytes();
  const std::vector<float> want_lse = c.lse;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kFlushAndRoundUp);
  const vca_status status = c.run();
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  expect_ok(status);
  EXPECT_EQ(after & ~0x3Fu, kFlushAndRoundUp);  // the low bits are sticky flags
  EXPECT_EQ(c.o.bytes(), want);
  EXPECT_EQ(c.lse, want_lse);
}
#endif

// ---- workspace ----

class Split : public testing::TestWithParam<int32_t> {};

// After prepare the inputs may be overwritten; attend gives what one call gives.
TEST_P(Split, InputsMayBeFreedInBetween) {
  Call c({2, 4, 2, 100, 210, 80});
  c.desc.recipe = GetParam();
  c.with_lse();
  expect_ok(c.run());
  const std::vector<uint8_t> want = c.o.bytes();
  const std::vector<float> want_lse = c.lse;
  std::fill(c.o.bytes().begin(), c.o.bytes().end(), uint8_t{0x11});
  std::fill(c.lse.begin(), c.lse.end(), 0.0f);

  Room room(c);
  // Nothing in it is assumed to be zero.
  std::fill(room.buffer.begin(), room.buffer.end(), uint8_t{0xEE});
  expect_ok(vca_attn_prepare(&c.desc, room.data, room.bytes, nullptr));
  for (Tensor* t : {&c.q, &c.k, &c.v})
    std::fill(t->bytes().begin(), t->bytes().end(), uint8_t{0xFF});
  c.desc.q.data = c.desc.k.data = c.desc.v.data = nullptr;
  expect_ok(vca_attn_attend(&c.desc, room.data, room.bytes, nullptr));
  EXPECT_EQ(c.o.bytes(), want);
  EXPECT_EQ(c.lse, want_lse);
}

INSTANTIATE_TEST_SUITE_P(All, Split, testing::Range(1, 12),
                         [](const testing::TestParamInfo<int32_t>& info) {
                           std::string name = vca_recipe_str(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Workspace, RunWithAndWithoutGiveTheSameBits) {
  Call c({1, 3, 3, 150, 150, 64});
  expect_ok(c.run());
  const std::vector<uint8_t> want = c.o.bytes();
  Room room(c);
  std::fill(c.o.bytes().begin(), c.o.bytes().end(), uint8_t{0});
  expect_ok(vca_attn_run(&c.desc, room.data, room.bytes, nullptr));
  EXPECT_EQ(c.o.bytes(), want);
  // Nothing beyond the stated size is written.
  for (const uint8_t* at = room.data + room.bytes; at < room.buffer.data() + room.buffer.size();
       ++at)
    EXPECT_EQ(*at, 0);
}

TEST(Workspace, IsLinearInTokens) {
  const auto bytes_of = [](int64_t s) {
    Call c({1, 1, 1, 1, 1, 64});
    for (vca_tensor* t : {&c.desc.q, &c.desc.k, &c.desc.v, &c.desc.o}) t->shape[2] = s;
    for (vca_tensor* t : {&c.desc.q, &c.desc.k, &c.desc.v, &c.desc.o}) t->stride[2] = 64;
    size_t bytes = 0;
    expect_ok(vca_attn_workspace(&c.desc, &bytes));
    return bytes;
  };
  const size_t small = bytes_of(128 * 100), large = bytes_of(128 * 1000);
  // A constant of one header, alignment and per-head vectors: less than 4 KiB.
  EXPECT_NEAR(static_cast<double>(large), 10.0 * static_cast<double>(small), 10.0 * 4096);
}

TEST(Workspace, FormulaOfTheDocumentation) {
  // docs/architecture.md, "Workspace": vc8, d_pad 128, B 1, H_q 2, H_kv 1, S_q 100, S_kv 300 (3
  // blocks).
  Call c({1, 2, 1, 100, 300, 128});
  size_t bytes = 0;
  expect_ok(vca_attn_workspace(&c.desc, &bytes));
  const size_t kv = 3 * 128 * 4          // order
                    + 2 * 3 * 128 * 128  // K and V codes
                    + 64                 // K scales: 3 * 4 floats
                    + 3 * 128 * 4        // means
                    + 2 * 128 * 4        // s_v, K offset
                    + 64;                // statistics
  const size_t q = 100 * 128             // codes
                   + 7 * 8 * 4 + 32  // scales: ceil(100 / 16) * 8 floats, rounded up to 64 bytes
                   + 64;             // largest scale
  EXPECT_EQ(bytes, 64 + kv + 2 * q);
}

TEST(Workspace, Refusals) {
  Call c({1, 1, 1, 50, 140, 64});
  Room room(c);
  expect_refused(vca_attn_prepare(&c.desc, nullptr, 0, nullptr), VCA_ERR_WORKSPACE,
                 {"NULL", "vca_attn_workspace"});
  expect_refused(vca_attn_prepare(&c.desc, room.data, room.bytes - 1, nullptr), VCA_ERR_WORKSPACE,
                 {"too small", std::to_string(room.bytes - 1), std::to_string(room.bytes)});
  expect_refused(vca_attn_prepare(&c.desc, room.data + 8, room.bytes, nullptr), VCA_ERR_WORKSPACE,
                 {"aligned", "64"});
  expect_refused(vca_attn_run(&c.desc, room.data, 10, nullptr), VCA_ERR_WORKSPACE, {"too small"});
  expect_refused(vca_attn_attend(&c.desc, room.data, room.bytes, nullptr), VCA_ERR_WORKSPACE,
                 {"nothing prepared", "vca_attn_prepare"});
  expect_ok(vca_attn_prepare(&c.desc, room.data, room.bytes, nullptr));
  expect_ok(vca_attn_attend(&c.desc, room.data, room.bytes, nullptr));

  const std::vector<uint8_t> before = c.o.bytes();
  const auto foreign = [&](const std::function<void(vca_attn_desc&)>& change, const char* word) {
    vca_attn_desc other = c.desc;
    change(other);
    expect_refused(vca_attn_attend(&other, room.data, room.bytes, nullptr), VCA_ERR_WORKSPACE,
                   {word});
  };
  foreign([](vca_attn_desc& d) { d.recipe = VCA_RECIPE_VC8_TURBO; }, "another recipe");
  foreign([](vca_attn_desc& d) { d.has_scale = 1, d.scale = 0.3; }, "another problem");
  foreign([](vca_attn_desc& d) { d.grouping = VCA_GROUPING_IDENTITY; }, "another problem");
  foreign([](vca_attn_desc& d) { d.k.shape[2] = d.v.shape[2] = 139; }, "another problem");
  const int32_t lens = 139;
  foreign([&](vca_attn_desc& d) { d.kv_lens = &lens; }, "another problem");
  EXPECT_EQ(c.o.bytes(), before);

  // A prepare that fails leaves nothing behind that attend would take.
  c.desc.flags = VCA_CHECK_FINITE;
  c.k.set(0, 0, 1, 1, std::numeric_limits<float>::infinity());
  expect_refused(vca_attn_prepare(&c.desc, room.data, room.bytes, nullptr), VCA_ERR_NON_FINITE,
                 {"k["});
}

TEST(Workspace, AttendChecksItsOwnOutputs) {
  Call c({1, 1, 1, 60, 60, 64});
  c.output(VCA_FP32);
  c.with_lse();
  Room room(c);
  expect_ok(vca_attn_prepare(&c.desc, room.data, room.bytes, nullptr));
  c.desc.lse = static_cast<float*>(c.desc.o.data);
  expect_refused(vca_attn_attend(&c.desc, room.data, room.bytes, nullptr), VCA_ERR_INVALID_ARGUMENT,
                 {"overlaps lse"});
}

TEST(Workspace, LiesOverNothingThatPrepareReadsOrWrites) {
  Call c({1, 1, 1, 60, 60, 64});
  Room room(c);
  const auto refused = [&](const char* name, auto vca_attn_desc::*field) {
    vca_attn_desc d = c.desc;
    d.*field = reinterpret_cast<std::remove_reference_t<decltype(d.*field)>>(room.data + 64);
    for (const auto call : {vca_attn_prepare, vca_attn_run})
      expect_refused(call(&d, room.data, room.bytes, nullptr), VCA_ERR_INVALID_ARGUMENT,
                     {"output workspace overlaps", name});
  };
  refused("kv_lens", &vca_attn_desc::kv_lens);
  refused("key_mask", &vca_attn_desc::key_mask);
  refused("energy_removed", &vca_attn_desc::energy_removed);
  refused("regrouped", &vca_attn_desc::regrouped);
}

// The output may take the place of q once q has been prepared.
TEST(Workspace, OutputMayReplaceQueriesAfterPrepare) {
  Call c({1, 1, 1, 60, 60, 64});
  expect_ok(c.run());
  const std::vector<uint8_t> want = c.o.bytes();
  Room room(c);
  expect_ok(vca_attn_prepare(&c.desc, room.data, room.bytes, nullptr));
  c.desc.o.data = c.desc.q.data;
  expect_ok(vca_attn_attend(&c.desc, room.data, room.bytes, nullptr));
  EXPECT_EQ(c.q.bytes(), want);
}

}  // namespace
}  // namespace vca::test
