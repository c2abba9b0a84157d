// SPDX-License-Identifier: Apache-2.0
// Bug lines about calls, on a device: streams, graphs, memory that is not written or must not be,
// masks and sequences.
#include <cmath>
#include <limits>

#include "device/bugs_support.hpp"

namespace vca::tests {
namespace {

Case some(const char* name) {
  Case c{.name = name};
  c.h_q = c.h_kv = 2, c.s_q = size(700, 40), c.s_kv = size(1900, 150);
  return c;
}

// The inputs are still on their way when attention is called: stream order alone must do.
TEST(DeviceBugs, B12_ProducerOnTheSameStream) {
  const Problem p(some("B12"), 11);
  run(p);
  const Output eager(p);
  std::unique_ptr<DeviceBytes> from[3];
  for (int i = 0; i < 3; ++i) {
    from[i] = std::make_unique<DeviceBytes>(p.storage[i].size());
    from[i]->upload(p.storage[i].data());
    p.inputs[i]->fill(0x7F);
  }
  const DeviceBytes big(static_cast<size_t>(size(1 << 29, 1 << 12)));
  p.poison(kPoison);
  const Stream stream;
  wait_for_device();
  for (int i = 0; i < 10; ++i)  // keeps the stream busy for a while
    check(cudaMemsetAsync(big.data(), i, big.size(), stream), "memset");
  for (int i = 0; i < 3; ++i)
    check(cudaMemcpyAsync(p.inputs[i]->data(), from[i]->data(), from[i]->size(),
                          cudaMemcpyDeviceToDevice, stream),
          "copy");
  ASSERT_EQ(status_text(p.run(stream)), "");
  stream.wait();
  const std::vector<uint8_t> o = p.o->download(), lse = p.lse->download();
  EXPECT_EQ(Comparison(p, o, lse).run(), "");
}

TEST(DeviceBugs, B13_ReplayedGraphReadsNewValues) {
  Problem p(some("B13"), 12);
  p.fill(2, one);
  const Stream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  wait_for_device();
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  const std::string captured = status_text(p.run(stream));
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  ASSERT_EQ(captured, "");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  for (const float value : {1.0f, 2.0f, -3.0f}) {
    p.fill(2, [value](int64_t, int64_t, int64_t, int64_t) { return value; });
    wait_for_device();
    check(cudaGraphLaunch(exec, stream), "graph");
    stream.wait();
    EXPECT_EQ(Output(p).rows_other_than(value), 0) << value;
  }
  check(cudaGraphExecDestroy(exec), "destroy");
  check(cudaGraphDestroy(graph), "destroy");
}

TEST(DeviceBugs, B16_NoOutputIsLeftUnwritten) {
  for (const int32_t recipe :
       {VCA_RECIPE_VC8, VCA_RECIPE_VC8_TURBO, VCA_RECIPE_VC8_PAPER, VCA_RECIPE_VC8_EXP}) {
    Case c{.name = "B16", .recipe = recipe, .memory = Memory::nhd};
    c.b = 2, c.h_q = c.h_kv = size(3, 1), c.s_q = 70, c.s_kv = 140, c.d = 40;
    Problem p(c, 13);
    p.fill(2, one);
    for (const auto* bytes : {p.o.get(), p.workspace.get()})
      bytes->fill({0x41, 0x46});  // 12345 in BF16
    run(p);
    EXPECT_EQ(Output(p).rows_other_than(1.0f), 0) << vca_recipe_str(recipe);
  }
}

TEST(DeviceBugs, B28_ManyShortCallsAndKeysAreNotWritten) {
  Case c{.name = "B28", .memory = Memory::nhd};
  c.b = size(476, 3), c.h_q = c.h_kv = size(12, 2), c.s_q = c.s_kv = 20;
  const Problem p(c, 14);
  run_and_compare(p);
  EXPECT_TRUE(p.inputs_unchanged());
}

// Keys that are masked, too long or padding hold NaN and 1e4: the bits are those of a call that
// never had them.
TEST(DeviceBugs, B29_MaskedKeysNeverLeak) {
  Case c{.name = "B29"};
  c.s_q = 30, c.s_kv = 37, c.d = 64;
  const Problem alone(c, 15);
  run(alone);
  const std::vector<uint8_t> want_o = alone.o->download(), want_lse = alone.lse->download();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* way : {"mask", "length", "padding"}) {
    SCOPED_TRACE(way);
    c.s_kv = 256;
    c.mask = way == std::string("mask");
    c.lens = way == std::string("length");
    Problem p(c, 15);
    for (const int which : {0, 1, 2})
      p.fill(which, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
        if (which == 0 || s < 37) return alone.input(which, b, h, s, d);
        return s % 2 == 0 ? 1e4f : nan;
      });
    const vca_segment segments[] = {{0, 37, VCA_SEGMENT_VIDEO, 0},
                                    {37, 219, VCA_SEGMENT_PADDING, 0}};
    if (c.lens) p.lens[0] = 37;
    if (c.mask) {
      for (size_t i = 0; i < p.mask.size(); ++i) p.mask[i] = i < 37 ? 1 : 0;
      p.d_mask->upload(p.mask.data());
    }
    if (!c.lens && !c.mask) {
      p.device.segments = segments;
      p.device.n_segments = 2;
    }
    p.upload_inputs();
    size_t bytes = 0;
    ASSERT_EQ(status_text(vca_attn_workspace(&p.device, &bytes)), "");
    const DeviceBytes workspace(bytes);
    ASSERT_EQ(status_text(vca_attn_run(&p.device, workspace.data(), bytes, nullptr)), "");
    wait_for_device();
    EXPECT_EQ(p.o->download(), want_o);
    EXPECT_EQ(p.lse->download(), want_lse);
  }
}

TEST(DeviceBugs, B33_NothingToAttendTo) {
  Case c{.name = "B33", .dtype = VCA_FP16, .o_dtype = VCA_FP16};
  c.b = 2, c.h_q = c.h_kv = 2, c.s_q = 9, c.s_kv = 0, c.d = 64;
  const Problem none(c, 16);
  run(none);
  EXPECT_EQ(Output(none).rows_other_than(0.0f), 0);
  EXPECT_EQ(Output(none).lse(1, 1, 8), -std::numeric_limits<float>::infinity());
  c.s_q = 0, c.s_kv = 9;
  run(Problem(c, 16));
  // A neighbour without a key changes nothing.
  c.s_q = 20, c.s_kv = 150;
  const Problem full(c, 17);
  run(full);
  c.lens = true;  // batch 1 has no key
  const Problem ragged(c, 17);
  run(ragged);
  const Output want(full), got(ragged);
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t s = 0; s < c.s_q; ++s) {
      for (int64_t d = 0; d < c.d; ++d) {
        ASSERT_EQ(got.at(0, h, s, d), want.at(0, h, s, d));
        ASSERT_EQ(got.at(1, h, s, d), 0.0f);
      }
      ASSERT_EQ(got.lse(1, h, s), -std::numeric_limits<float>::infinity());
    }
}

// Two sequences with K means of +20 and -20: each has statistics of its own, so each gives the bits
// of a call alone.
TEST(DeviceBugs, B38_SequencesDoNotShareStatistics) {
  constexpr int64_t kFirst = 300, kSecond = 77;
  Case c{.name = "B38", .dtype = VCA_FP32, .o_dtype = VCA_FP32};
  c.s_q = c.s_kv = kFirst + kSecond, c.d = 64;
  Problem both(c, 18);
  both.fill(1, [](int64_t b, int64_t h, int64_t s, int64_t d) {
    return (s < kFirst ? 20.0f : -20.0f) + normal_at(5, b, h, s, d);
  });
  const vca_segment segments[] = {{0, kFirst, VCA_SEGMENT_SEQUENCE, 0},
                                  {kFirst, kSecond, VCA_SEGMENT_SEQUENCE, 0}};
  both.device.segments = segments;
  both.device.n_segments = 2;
  size_t bytes = 0;
  ASSERT_EQ(status_text(vca_attn_workspace(&both.device, &bytes)), "");
  const DeviceBytes workspace(bytes);
  ASSERT_EQ(status_text(vca_attn_run(&both.device, workspace.data(), bytes, nullptr)), "");
  wait_for_device();
  const Output together(both);
  int64_t begin = 0;
  for (const int64_t n : {kFirst, kSecond}) {
    c.s_q = c.s_kv = n;
    Problem alone(c, 18);
    for (const int which : {0, 1, 2})
      alone.fill(which, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
        return both.input(which, b, h, begin + s, d);
      });
    run(alone);
    const Output want(alone);
    for (int64_t s = 0; s < n; ++s)
      for (int64_t d = 0; d < c.d; ++d)
        ASSERT_EQ(together.at(0, 0, begin + s, d), want.at(0, 0, s, d)) << begin + s;
    begin += n;
  }
}

}  // namespace
}  // namespace vca::tests
