// SPDX-License-Identifier: Apache-2.0
// The C ABI on device tensors, everything that preprocessing can be asked for: a hundred runs of
// each recipe with a grouping, RoPE and Hadamard; the steps of a clip with a group state, called
// one by one and replayed by one graph, a hundred calls with the same bits; states and blobs where
// they may not be; groupings on two streams.
#include <gtest/gtest.h>

#include "device/capi_compare.hpp"

namespace vca::tests {
namespace {

// Orders where the recipe has block means, RoPE, Hadamard, key lengths, LSE.
Case everything(int32_t recipe) {
  Case c{.name = "everything", .recipe = recipe, .rope = RopeKind::grid, .lens = true};
  c.hadamard = 1;
  c.b = 2, c.h_q = 6, c.h_kv = 3, c.s_q = c.s_kv = 1500;
  if (small_problems()) c.b = c.h_q = c.h_kv = 1, c.s_q = c.s_kv = 270;
  c.o_gap = 0;
  if (recipe != VCA_RECIPE_SAGE2 && recipe != VCA_RECIPE_FP8) {
    c.grouping = VCA_GROUPING_VSMOOTH;
    c.energy = true;
  }
  return c;
}

struct Results {
  std::vector<uint8_t> o, lse, energy, regrouped, state;
  bool operator==(const Results&) const = default;
};
Results results_of(const Problem& p, const DeviceBytes* state = nullptr) {
  return {p.o->download(), p.lse->download(),
          p.energy ? p.energy->download() : std::vector<uint8_t>(),
          p.regrouped ? p.regrouped->download() : std::vector<uint8_t>(),
          state != nullptr ? state->download() : std::vector<uint8_t>()};
}

Results run_and_wait(const Problem& p) {
  EXPECT_EQ(status_text(p.run(nullptr)), "");
  wait_for_device();
  return results_of(p);
}

TEST(CApi, HundredRunsOfEveryRecipe) {
  std::vector<int32_t> recipes = {VCA_RECIPE_VC8_PAPER, VCA_RECIPE_SAGE2};
  if (!small_problems())
    recipes.insert(recipes.end(),
                   {VCA_RECIPE_VC8, VCA_RECIPE_VC8_TURBO, VCA_RECIPE_VC8_EXP, VCA_RECIPE_FP8});
  for (const int32_t recipe : recipes) {
    SCOPED_TRACE(vca_recipe_str(recipe));
    const Problem p(everything(recipe), 31);
    const Results first = run_and_wait(p);
    ASSERT_EQ(Comparison(p, first.o, first.lse).run(), "");
    const int runs = small_problems() ? 1 : 100;
    for (int i = 0; i < runs; ++i) {
      p.poison(i % 2 == 0 ? 0x00 : 0x7F);
      ASSERT_TRUE(run_and_wait(p) == first) << "run " << i;
    }
  }
}

// A clip's values drift: those of step `step`, as bytes.
std::vector<uint8_t> values_of_step(Problem& p, int32_t step) {
  const int64_t s_kv = p.c.s_kv;
  p.fill(2, [step, s_kv](int64_t b, int64_t h, int64_t s, int64_t d) {
    Random of_class(static_cast<uint64_t>((b * 7 + h) * 31 + s * 5 % 11) * 131 +
                    static_cast<uint64_t>(d));
    Random noise(static_cast<uint64_t>(((step * 3 + b) * 7 + h) * s_kv + s) * 131 +
                 static_cast<uint64_t>(d));
    return of_class.normal() + (0.2f + 0.3f * static_cast<float>(step)) * noise.normal();
  });
  return p.storage[2];
}

// A window of one step or of two, then steps that keep the order until it has decayed.
int32_t steps_of_a_clip() { return small_problems() ? 4 : 6; }

// A problem with a group state on the device.
struct Clip {
  Problem p;
  vca_policy policy{};
  DeviceBytes step{sizeof(int32_t)};
  std::unique_ptr<DeviceBytes> state;

  explicit Clip(const Case& c) : p(c, 50) {
    policy.struct_size = sizeof policy;
    policy.steps = steps_of_a_clip();
    p.device.policy = &policy;
    p.device.step = step.as<int32_t>();
    size_t bytes = 0;
    // The size does not depend on the state; the descriptor needs one to be valid.
    check_status(vca_group_state_bytes(&p.device, &bytes));
    state = std::make_unique<DeviceBytes>(bytes);
    p.device.state = state->data();
    check_status(vca_group_state_init(&p.device, state->data(), bytes, nullptr));
    check_status(vca_attn_workspace(&p.device, &p.workspace_bytes));
    p.workspace = std::make_unique<DeviceBytes>(p.workspace_bytes);
  }
  static void check_status(vca_status status) {
    if (status != VCA_OK) throw std::runtime_error(vca_last_error());
  }
  void set_step(int32_t value) { step.upload(&value); }
  Results results() const { return results_of(p, state.get()); }
};

// The CPU backend's f and decisions, whose orders are the specification's.
class HostClip {
 public:
  explicit HostClip(Clip& clip)
      : desc_(clip.p.host),
        o_(clip.p.o_bytes()),
        heads_(static_cast<size_t>(clip.p.c.b * clip.p.c.h_kv)),
        f_(heads_),
        regrouped_(heads_) {
    desc_.policy = &clip.policy;
    desc_.step = &step_;
    desc_.o.data = o_.data();
    desc_.energy_removed = f_.data();
    desc_.regrouped = regrouped_.data();
    size_t bytes = 0;
    Clip::check_status(vca_group_state_bytes(&desc_, &bytes));
    state_.resize(bytes / 8 + 1);
    desc_.state = state_.data();
    Clip::check_status(vca_group_state_init(&desc_, state_.data(), bytes, nullptr));
  }
  void expect(int32_t step, const Results& got) {
    step_ = step;
    ASSERT_EQ(vca_attn_run(&desc_, nullptr, 0, nullptr), VCA_OK) << vca_last_error();
    EXPECT_EQ(std::memcmp(got.energy.data(), f_.data(), heads_ * 4), 0) << "f of step " << step;
    EXPECT_EQ(got.regrouped, regrouped_) << "step " << step;
  }

 private:
  vca_attn_desc desc_;
  std::vector<uint8_t> o_;
  size_t heads_;
  std::vector<float> f_;
  std::vector<uint8_t> regrouped_;
  std::vector<uint64_t> state_;
  int32_t step_ = 0;
};

TEST(CApi, StepsOfAClipCalledAndReplayed) {
  Case c = everything(VCA_RECIPE_VC8);
  c.b = 2;  // the second one has no keys: no order, at no step
  Clip clip(c);
  HostClip host(clip);
  std::vector<Results> called;
  std::vector<std::vector<uint8_t>> values;
  for (int32_t step = 0; step < steps_of_a_clip(); ++step) {
    values.push_back(values_of_step(clip.p, step));
    clip.set_step(step);
    clip.p.poison(kPoison);
    ASSERT_EQ(status_text(clip.p.run(nullptr)), "");
    wait_for_device();
    called.push_back(clip.results());
    ASSERT_NO_FATAL_FAILURE(host.expect(step, called.back()));
  }
  EXPECT_FALSE(called[0].o == called[1].o);
  const auto all = [&c](uint8_t x) {
    std::vector<uint8_t> heads(static_cast<size_t>(c.b * c.h_kv));
    std::fill_n(heads.begin(), c.h_kv, x);
    return heads;
  };
  EXPECT_EQ(called[0].regrouped, all(1));
  EXPECT_EQ(called[small_problems() ? 1 : 2].regrouped, all(0));

  const Stream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  const std::string captured = status_text(clip.p.run(stream));
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  ASSERT_EQ(captured, "");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  const int calls = small_problems() ? 1 : 100;
  for (int done = 0; done < calls;) {
    ASSERT_EQ(status_text(vca_group_state_reset(clip.state->data(), clip.state->size(), nullptr)),
              "");
    for (int32_t step = 0; step < steps_of_a_clip(); ++step, ++done) {
      clip.p.inputs[2]->upload(values[static_cast<size_t>(step)].data());
      clip.set_step(step);
      clip.p.poison(done % 2 == 0 ? 0x00 : 0x7F);
      wait_for_device();
      check(cudaGraphLaunch(exec, stream), "graph");
      stream.wait();
      ASSERT_TRUE(clip.results() == called[static_cast<size_t>(step)])
          << "step " << step << " after " << done << " replays";
    }
  }
  check(cudaGraphExecDestroy(exec), "destroy");
  check(cudaGraphDestroy(graph), "destroy");
  EXPECT_EQ(clip.p.broken_guard(), "");
  EXPECT_TRUE(clip.state->guards_intact());
}

// What the CPU would read or write there: each would end the process if it were followed.
TEST(CApi, StatesAndBlobsInDeviceMemoryAreNotFollowedOnTheCpu) {
  Clip clip(everything(VCA_RECIPE_VC8));
  uint8_t* const on_device = clip.state->data();
  const vca_attn_desc& host = clip.p.host;
  size_t bytes = 0;
  ASSERT_EQ(status_text(vca_group_state_bytes(&host, &bytes)), "");
  std::vector<uint64_t> state(bytes / 8 + 1);
  ASSERT_EQ(status_text(vca_group_state_init(&host, state.data(), bytes, nullptr)), "");
  size_t blob_bytes = 0;
  ASSERT_EQ(status_text(vca_group_state_save(state.data(), bytes, nullptr, &blob_bytes)), "");
  std::vector<uint8_t> blob(blob_bytes);
  ASSERT_EQ(status_text(vca_group_state_save(state.data(), bytes, blob.data(), &blob_bytes)), "");
  const auto refused = [&](vca_status status, const std::string& which) {
    expect_refused(status, VCA_ERR_INVALID_ARGUMENT,
                   {which + " lies in the memory of a CUDA device", "host memory", "hint"});
  };
  const std::vector<uint8_t> before = clip.state->download();
  size_t needed = blob_bytes;
  refused(vca_group_state_save(on_device, clip.state->size(), nullptr, &needed), "state");
  EXPECT_NE(std::strstr(vca_last_error(), "copy a state of the CPU backend to host memory first"),
            nullptr)
      << vca_last_error();
  // Inside the allocation as well, and whatever the bytes are said to be.
  refused(vca_group_state_save(on_device + 8, 0, blob.data(), &needed), "state");
  refused(vca_group_state_save(state.data(), bytes, on_device, &needed), "blob");
  refused(vca_group_state_load(&host, on_device, bytes, blob.data(), blob_bytes), "state");
  refused(vca_group_state_load(&host, state.data(), bytes, on_device, blob_bytes), "blob");
  refused(vca_group_state_init(&host, on_device, bytes, nullptr), "state");
  expect_refused(
      vca_group_state_load(&clip.p.device, on_device, clip.state->size(), blob.data(), blob_bytes),
      VCA_ERR_UNSUPPORTED, {"host memory only"});
  wait_for_device();
  EXPECT_EQ(needed, blob_bytes) << "a refused call wrote the size";
  EXPECT_TRUE(clip.state->download() == before) << "a refused call wrote the device's state";
  // What a device's state holds is no state of the CPU's, in host memory either.
  std::vector<uint64_t> copy(before.size() / 8 + 1);
  std::memcpy(copy.data(), before.data(), before.size());
  expect_refused(vca_group_state_save(copy.data(), before.size(), nullptr, &needed), VCA_ERR_STATE,
                 {"not initialised"});
  EXPECT_EQ(status_text(vca_group_state_load(&host, state.data(), bytes, blob.data(), blob_bytes)),
            "");
}

TEST(CApi, ResetOfTooFewBytesOrAtAnOddAddressIsRefused) {
  Clip clip(everything(VCA_RECIPE_VC8));
  clip.set_step(0);
  ASSERT_EQ(status_text(clip.p.run(nullptr)), "");
  wait_for_device();
  uint8_t* const state = clip.state->data();
  const std::vector<uint8_t> kept = clip.state->download();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{255}})
    expect_refused(vca_group_state_reset(state, bytes, nullptr), VCA_ERR_STATE,
                   {"shorter than its header", "got " + std::to_string(bytes) + " bytes",
                    "256 bytes of the header or more", "vca_group_state_init()"});
  expect_refused(vca_group_state_reset(state + 8, clip.state->size() - 8, nullptr), VCA_ERR_STATE,
                 {"not aligned", "leaves 8 modulo 256"});
  // The header fits and the state does not: the device finds out, and leaves it alone.
  EXPECT_EQ(status_text(vca_group_state_reset(state, clip.state->size() - 1, nullptr)), "");
  wait_for_device();
  EXPECT_TRUE(clip.state->download() == kept);
  EXPECT_EQ(status_text(vca_group_state_reset(state, clip.state->size(), nullptr)), "");
  wait_for_device();
  EXPECT_FALSE(clip.state->download() == kept) << "there was nothing to forget";
}

TEST(CApi, GroupingsOnTwoStreamsAtOnce) {
  const Problem a(everything(VCA_RECIPE_VC8), 61), b(everything(VCA_RECIPE_VC8_PAPER), 62);
  const Results want_a = run_and_wait(a), want_b = run_and_wait(b);
  const Stream one, two;
  for (int round = 0; round < (small_problems() ? 1 : 10); ++round) {
    for (const Problem* p : {&a, &b}) p->poison(kPoison);
    wait_for_device();
    for (int i = 0; i < (small_problems() ? 1 : 5); ++i) {
      ASSERT_EQ(status_text(a.run(one)), "");
      ASSERT_EQ(status_text(b.run(two)), "");
    }
    wait_for_device();
    EXPECT_TRUE(results_of(a) == want_a) << "round " << round;
    EXPECT_TRUE(results_of(b) == want_b) << "round " << round;
  }
}

}  // namespace
}  // namespace vca::tests
