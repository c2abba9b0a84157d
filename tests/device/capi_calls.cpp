// SPDX-License-Identifier: Apache-2.0
// The C ABI on device tensors, several calls: repeated, captured, on two streams, split in two, on
// tensors that lie far apart; and what is refused.
#include <gtest/gtest.h>

#include "device/capi_compare.hpp"

namespace vca::tests {
namespace {

Case middle() {
  Case c{.name = "middle", .lens = true};
  c.b = 2, c.h_q = 6, c.h_kv = 3, c.s_q = 700, c.s_kv = 1900;
  if (small_problems()) c.h_q = 2, c.h_kv = 1, c.s_q = 40, c.s_kv = 150;
  return c;
}

struct Outputs {
  std::vector<uint8_t> o, lse;
  bool operator==(const Outputs&) const = default;
};
Outputs outputs_of(const Problem& p) { return {p.o->download(), p.lse->download()}; }

Outputs run_and_wait(const Problem& p) {
  EXPECT_EQ(status_text(p.run(nullptr)), "");
  wait_for_device();
  return outputs_of(p);
}

std::string compare(const Problem& p) {
  const Outputs got = outputs_of(p);
  return Comparison(p, got.o, got.lse).run();
}

// The first test of the program (the first source that is linked), so that no kernel has been
// loaded when the capture begins. Every replay sees other data and other lengths, and gives the
// bits of a plain call; the specification's bits are looked at in every tenth.
TEST(CApiFirst, B12_GraphReplaysWithNewData) {
  ASSERT_EQ(tests_started(), 1) << "not the first test of the program";
  Problem p(middle(), 11);
  const Stream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  const std::string captured = status_text(p.run(stream));
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  ASSERT_EQ(captured, "");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  const uint64_t replays = small_problems() ? 3 : 50;
  Outputs last;
  for (uint64_t replay = 0; replay < replays; ++replay) {
    p.make_inputs(100 + replay);
    p.lens[1] = static_cast<int32_t>(static_cast<uint64_t>(p.c.s_kv) * replay / replays);
    p.upload_inputs();
    p.poison(kPoison);
    wait_for_device();
    check(cudaGraphLaunch(exec, stream), "graph");
    stream.wait();
    const Outputs replayed = outputs_of(p);
    if (replay % 10 == 0) {
      EXPECT_EQ(compare(p), "") << "replay " << replay;
    }
    EXPECT_FALSE(replayed == last) << "replay " << replay << " gave the old outputs";
    last = replayed;
    p.poison(kPoison);
    EXPECT_TRUE(run_and_wait(p) == replayed) << "replay " << replay << " against a plain call";
  }
  check(cudaGraphExecDestroy(exec), "destroy");
  check(cudaGraphDestroy(graph), "destroy");
}

TEST(CApi, HundredRunsAreBitwiseEqual) {
  Case c = middle();
  c.o_gap = 0;  // every byte of the outputs is written
  const Problem p(c, 12);
  const Outputs first = run_and_wait(p);
  ASSERT_EQ(compare(p), "");
  // NaN, 0x7F..., 12345 in FP32, 12345 in BF16, zero.
  const std::vector<uint8_t> poisons[] = {
      {0xFF}, {0x7F}, {0x00, 0xE4, 0x40, 0x46}, {0x41, 0x46}, {0x00}};
  const int runs = small_problems() ? 5 : 100;
  for (int i = 0; i < runs; ++i) {
    for (const auto* bytes : {p.o.get(), p.lse.get(), p.workspace.get()})
      bytes->fill(poisons[i % 5]);
    ASSERT_TRUE(run_and_wait(p) == first) << "run " << i;
  }
}

TEST(CApi, InputsMayGoBetweenPrepareAndAttend) {
  const Problem p(middle(), 12);
  const Outputs want = run_and_wait(p);
  p.poison(kPoison);
  ASSERT_EQ(
      status_text(vca_attn_prepare(&p.device, p.workspace->data(), p.workspace_bytes, nullptr)),
      "");
  wait_for_device();
  for (const auto& input : p.inputs) input->fill(0x7F);
  ASSERT_EQ(
      status_text(vca_attn_attend(&p.device, p.workspace->data(), p.workspace_bytes, nullptr)), "");
  wait_for_device();
  EXPECT_TRUE(outputs_of(p) == want);
}

TEST(CApi, TwoStreamsAtOnceWithDifferentData) {
  Case other = middle();
  other.recipe = VCA_RECIPE_VC8_TURBO;
  const Problem a(middle(), 13), b(middle(), 14), c(other, 15);
  const Outputs want_a = run_and_wait(a), want_b = run_and_wait(b), want_c = run_and_wait(c);
  EXPECT_FALSE(want_a == want_b);
  const Stream one, two;
  for (int round = 0; round < (small_problems() ? 1 : 10); ++round) {
    for (const Problem* p : {&a, &b, &c}) p->poison(kPoison);
    wait_for_device();
    for (int i = 0; i < (small_problems() ? 1 : 5); ++i) {
      ASSERT_EQ(status_text(a.run(one)), "");
      ASSERT_EQ(status_text(b.run(two)), "");
      ASSERT_EQ(status_text(c.run(one)), "");
    }
    wait_for_device();
    EXPECT_TRUE(outputs_of(a) == want_a) << "round " << round;
    EXPECT_TRUE(outputs_of(b) == want_b) << "round " << round;
    EXPECT_TRUE(outputs_of(c) == want_c) << "round " << round;
  }
}

// Host memory that goes away when the call returns: structs, segments and RoPE's description.
TEST(CApi, DescriptionsMayGoWhenTheCallReturns) {
  Case c = middle();
  c.split = Split::text_and_padding;
  const Problem p(c, 18);
  const Outputs want = run_and_wait(p);
  p.poison(kPoison);
  {
    auto segments = std::make_unique<std::vector<vca_segment>>(p.segments);
    auto desc = std::make_unique<vca_attn_desc>(p.device);
    desc->segments = segments->data();
    ASSERT_EQ(
        status_text(vca_attn_run(desc.get(), p.workspace->data(), p.workspace_bytes, nullptr)), "");
    std::fill(segments->begin(), segments->end(), vca_segment{7, 7, 7, 7});
    std::memset(desc.get(), 0x7F, sizeof(vca_attn_desc));
  }
  wait_for_device();
  EXPECT_TRUE(outputs_of(p) == want);
}

// Heads more than 2^31 elements apart, copied from a compact problem.
TEST(CApi, HeadsFurtherApartThanTwoToThe31) {
  if (small_problems()) GTEST_SKIP() << "needs 9 GB";
  Case c{.name = "far apart"};
  c.h_q = c.h_kv = 2, c.s_q = c.s_kv = 300;
  const Problem p(c, 15);
  run_and_wait(p);
  const int64_t pitch = (int64_t{1} << 31) + 64, head = c.s_q * c.d;
  const DeviceBytes memory(static_cast<size_t>(pitch + 4 * head) * 2);
  vca_attn_desc far = p.device;
  vca_tensor* const to[3] = {&far.q, &far.k, &far.v};
  for (int64_t i = 0; i < 3; ++i) {
    to[i]->data = memory.data() + i * head * 2;
    to[i]->stride[1] = pitch;
    for (int64_t h = 0; h < 2; ++h)
      check(
          cudaMemcpy(memory.data() + (i * head + h * pitch) * 2, p.inputs[i]->data() + h * head * 2,
                     static_cast<size_t>(head) * 2, cudaMemcpyDeviceToDevice),
          "copy");
  }
  far.o = tensor(c.o_dtype, 1, 2, c.s_q, c.d, false);
  far.o.data = memory.data() + 3 * head * 2;
  far.o.stride[1] = pitch;
  ASSERT_EQ(status_text(vca_attn_run(&far, p.workspace->data(), p.workspace_bytes, nullptr)), "");
  wait_for_device();
  const std::vector<uint8_t> near = p.o->download();
  std::vector<uint8_t> row(static_cast<size_t>(c.d) * 2);
  for (int64_t i = 0; i < 2 * c.s_q; ++i) {
    const int64_t h = i / c.s_q, s = i % c.s_q;
    check(cudaMemcpy(row.data(), memory.data() + (3 * head + h * pitch + s * c.d) * 2, row.size(),
                     cudaMemcpyDeviceToHost),
          "copy out");
    const int64_t* t = p.host.o.stride;
    ASSERT_EQ(std::memcmp(row.data(), near.data() + (h * t[1] + s * t[2]) * 2, row.size()), 0)
        << "row " << i;
  }
}

TEST(CApi, QueryAndExplainSayWhatRuns) {
  const Problem p(middle(), 17);
  char text[4096] = "";
  vca_attn_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(status_text(vca_attn_query(&p.device, &info)), "");
  ASSERT_EQ(status_text(vca_attn_explain(&p.device, text, sizeof text, nullptr)), "");
  EXPECT_NE(std::strstr(text, "sm90: chosen"), nullptr) << text;
  EXPECT_EQ(info.grouping, VCA_GROUPING_IDENTITY);
  EXPECT_EQ(info.target, VCA_TARGET_SM90);
  EXPECT_STREQ(info.kernel, "sm90");
  EXPECT_EQ(info.workspace_bytes, p.workspace_bytes);
}

// Below the break-even of the whole call AUTO declines; a named recipe and a long call run.
TEST(CApi, AutoDeclinesShortCalls) {
  const Problem p(middle(), 17);
  vca_attn_desc d = p.device;
  d.recipe = VCA_RECIPE_AUTO;
  EXPECT_EQ(vca_attn_run(&d, p.workspace->data(), p.workspace_bytes, nullptr), VCA_ERR_UNSUPPORTED);
  EXPECT_NE(std::strstr(vca_last_error(), "recipe auto declines"), nullptr) << vca_last_error();
  char text[4096] = "";
  ASSERT_EQ(status_text(vca_attn_explain(&d, text, sizeof text, nullptr)), "");
  EXPECT_NE(std::strstr(text, "sm90: refused: recipe auto declines"), nullptr) << text;
  for (vca_tensor* t : {&d.q, &d.k, &d.v, &d.o}) t->shape[2] = 1 << 20;
  vca_attn_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(status_text(vca_attn_query(&d, &info)), "");
  EXPECT_EQ(info.recipe, VCA_RECIPE_VC8);
}

TEST(CApi, RefusedCallsWriteNothing) {
  const Problem p(middle(), 17);
  vca_attn_desc d = p.device;
  uint8_t* const workspace = p.workspace->data();
  expect_refused(vca_attn_run(&d, nullptr, 0, nullptr), VCA_ERR_WORKSPACE, {"NULL"});
  expect_refused(vca_attn_run(&d, workspace, p.workspace_bytes - 1, nullptr), VCA_ERR_WORKSPACE,
                 {"too small"});
  expect_refused(vca_attn_run(&d, workspace + 64, p.workspace_bytes, nullptr), VCA_ERR_WORKSPACE,
                 {"256-byte"});
  expect_refused(vca_attn_run(&d, d.q.data, p.workspace_bytes, nullptr), VCA_ERR_INVALID_ARGUMENT,
                 {"overlaps q"});
  d.kv_lens = reinterpret_cast<const int32_t*>(workspace);
  expect_refused(vca_attn_run(&d, workspace, p.workspace_bytes, nullptr), VCA_ERR_INVALID_ARGUMENT,
                 {"overlaps kv_lens"});
  d = p.device;
  d.regrouped = workspace + p.workspace_bytes - 1;
  expect_refused(vca_attn_run(&d, workspace, p.workspace_bytes, nullptr), VCA_ERR_INVALID_ARGUMENT,
                 {"overlaps regrouped"});
  d = p.device;
  int pageable = 0;
  check(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, 0), "attribute");
  if (pageable == 0) {
    d.q = p.host.q;
    expect_refused(vca_attn_run(&d, workspace, p.workspace_bytes, nullptr),
                   VCA_ERR_INVALID_ARGUMENT, {"q.data is host memory"});
    d = p.device;
  }
  d.o.data = static_cast<uint8_t*>(p.device.o.data) + 2;
  expect_refused(vca_attn_run(&d, workspace, p.workspace_bytes, nullptr), VCA_ERR_UNSUPPORTED,
                 {"not 4-byte aligned"});
  wait_for_device();
  const Outputs after = outputs_of(p);
  for (const auto* bytes : {&after.o, &after.lse})
    EXPECT_TRUE(std::all_of(bytes->begin(), bytes->end(), [](uint8_t b) { return b == kPoison; }));
}

}  // namespace
}  // namespace vca::tests
