// SPDX-License-Identifier: Apache-2.0
// The group state through the C ABI: orders kept over steps, saved, loaded, refused.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/core/support.hpp"

namespace vca::test {
namespace {

constexpr Shape kShape{1, 2, 2, 40, 700, 64};

// A call with a state buffer and a step, and the outputs that tell what happened.
class Steps {
 public:
  explicit Steps(const Shape& shape = kShape, int32_t recipe = VCA_RECIPE_VC8) : call(shape) {
    call.desc.recipe = recipe;
    // Two kinds of token, far apart and interleaved: grouping pays, and its f is well above chance.
    call.v.fill([](int64_t, int64_t h, int64_t s, int64_t d) {
      const float noise = static_cast<float>((s * 31 + d * 17 + h) % 23) / 23.0f - 0.5f;
      return (s % 2 == 0 ? 2.0f : -2.0f) * static_cast<float>(d % 3) + noise;
    });
    policy.struct_size = sizeof(policy);
    policy.steps = 16;
    expect_ok(vca_group_state_bytes(&call.desc, &bytes));
    state.assign(bytes / 8 + 1, 0xDDDDDDDDDDDDDDDDu);
    expect_ok(vca_group_state_init(&call.desc, state.data(), bytes, nullptr));
    energy.assign(static_cast<size_t>(shape.b * shape.h_kv), -1.0f);
    regrouped.assign(energy.size(), 9);
    call.desc.policy = &policy;
    call.desc.state = state.data();
    call.desc.step = &step;
    call.desc.energy_removed = energy.data();
    call.desc.regrouped = regrouped.data();
  }
  // Whether any head was regrouped at this step.
  bool at(int32_t now) {
    step = now;
    expect_ok(call.run());
    for (const uint8_t r : regrouped) EXPECT_EQ(r, regrouped[0]);
    return regrouped[0] == 1;
  }
  std::vector<uint8_t> save() {
    size_t n = 0;
    expect_ok(vca_group_state_save(state.data(), bytes, nullptr, &n));
    std::vector<uint8_t> blob(n);
    expect_ok(vca_group_state_save(state.data(), bytes, blob.data(), &n));
    EXPECT_EQ(n, blob.size());
    return blob;
  }

  Call call;
  vca_policy policy{};
  int32_t step = 0;
  size_t bytes = 0;
  std::vector<uint64_t> state;
  std::vector<float> energy;
  std::vector<uint8_t> regrouped;
};

TEST(State, FollowsThePolicy) {
  Steps s;
  for (const int32_t step : {0, 1, 2, 3}) EXPECT_TRUE(s.at(step)) << step;
  for (const int32_t step : {4, 5, 15}) EXPECT_FALSE(s.at(step)) << step;
  // The energy of a kept order on the same values is that of the last grouping.
  const float kept = s.energy[0];
  EXPECT_GT(kept, 0.5f);
  expect_ok(vca_group_state_reset(s.state.data(), s.bytes, nullptr));
  EXPECT_TRUE(s.at(9)) << "a reset state has no order";
}

TEST(State, RegroupsWhenTheEnergyHasDecayed) {
  Steps s;
  EXPECT_TRUE(s.at(0));
  s.policy.window = -1;
  EXPECT_FALSE(s.at(1));
  // The pairing of tokens changes: the old blocks mix both kinds.
  s.call.v.fill([](int64_t, int64_t, int64_t t, int64_t d) {
    return ((t / 2) % 2 == 0 ? 2.0f : -2.0f) * static_cast<float>(d % 3) +
           static_cast<float>((t * 31 + d * 17) % 23) / 23.0f;
  });
  EXPECT_FALSE(s.at(2)) << "decided from the step before";
  const float stale = s.energy[0];
  EXPECT_TRUE(s.at(3));
  EXPECT_GT(s.energy[0], stale);
}

TEST(State, PaperRecipesReuseByDefault) {
  Steps s(kShape, VCA_RECIPE_VC8_PAPER);
  s.call.desc.policy = nullptr;  // one step: the window is step 0
  EXPECT_TRUE(s.at(0));
  s.call.v.fill_normal(77);
  for (const int32_t step : {1, 2, 3}) EXPECT_FALSE(s.at(step)) << "reuse, whatever the energy";
}

TEST(State, IdentityAfterTheWindow) {
  Steps s;
  s.policy.after = VCA_AFTER_IDENTITY;
  EXPECT_TRUE(s.at(0));
  EXPECT_FALSE(s.at(8));
  const std::vector<uint8_t> after = s.call.o.bytes();
  Call plain(kShape);
  plain.v = std::move(s.call.v);
  plain.bind();
  plain.desc.grouping = VCA_GROUPING_IDENTITY;
  expect_ok(plain.run());
  EXPECT_EQ(after, plain.o.bytes());
}

// A kept order is the stored one: the output at step 5 is the output of step 3 on the same inputs.
TEST(State, KeptOrdersGiveTheSameBits) {
  Steps s;
  s.at(0);
  s.at(3);
  const std::vector<uint8_t> want = s.call.o.bytes();
  s.at(5);
  EXPECT_EQ(s.call.o.bytes(), want);
}

TEST(State, SharedGuidanceKeepsTheOrderOfTheStep) {
  Steps s;
  s.policy.share_cfg = 1;
  EXPECT_TRUE(s.at(0));
  EXPECT_FALSE(s.at(0));
  EXPECT_TRUE(s.at(1));
  s.policy.share_cfg = 0;
  EXPECT_TRUE(s.at(1));
}

// A mask that came later: the stored order lists a token that is no longer valid.
TEST(State, AnOrderThatDoesNotFitIsReplaced) {
  Steps s;
  s.at(0);
  std::vector<uint8_t> mask(700, 1);
  mask[13] = 0;
  s.call.desc.key_mask = mask.data();
  EXPECT_TRUE(s.at(8));
  EXPECT_FALSE(s.at(9));
}

TEST(State, RecipesWithoutMeansNeedNone) {
  Steps s(kShape, VCA_RECIPE_SAGE2);
  EXPECT_LT(s.bytes, 256u);
  EXPECT_FALSE(s.at(0));
  EXPECT_TRUE(std::isnan(s.energy[0]));
}

TEST(State, SavedAndLoaded) {
  Steps a;
  a.at(0);
  a.at(3);
  const std::vector<uint8_t> want = a.call.o.bytes();
  const std::vector<uint8_t> blob = a.save();
  Steps b;
  expect_ok(vca_group_state_load(&b.call.desc, b.state.data(), b.bytes, blob.data(), blob.size()));
  EXPECT_FALSE(b.at(7));
  EXPECT_EQ(b.call.o.bytes(), want);
  EXPECT_EQ(a.save().size(), blob.size());
}

TEST(State, ForeignStatesAndBlobsAreRefused) {
  Steps a;
  a.at(0);
  const std::vector<uint8_t> blob = a.save();
  Steps other({1, 2, 2, 40, 701, 64});
  expect_refused(vca_group_state_load(&other.call.desc, other.state.data(), other.bytes,
                                      blob.data(), blob.size()),
                 VCA_ERR_STATE, {"another problem", "hint"});
  EXPECT_TRUE(other.at(9)) << "the refused load left the state as it was";
  // The same buffer with another grouping, shape or segment table.
  Steps b;
  b.call.desc.grouping = VCA_GROUPING_KMEANS;
  expect_refused(b.call.run(), VCA_ERR_STATE, {"another problem", "vca_group_state_init"});
  std::vector<uint64_t> raw(b.state.size(), 0);
  Steps c;
  c.call.desc.state = raw.data();
  expect_refused(c.call.run(), VCA_ERR_STATE, {"not initialised"});
}

TEST(State, DamageIsFoundBeforeAnythingIsWritten) {
  Steps s;
  s.at(0);
  const std::vector<uint64_t> good = s.state;
  const std::vector<uint8_t> blob = s.save();
  std::fill(s.call.o.bytes().begin(), s.call.o.bytes().end(), uint8_t{0x5A});
  const std::vector<uint8_t> before = s.call.o.bytes();
  auto* bytes = reinterpret_cast<uint8_t*>(s.state.data());
  // One byte of the header, of the table, of the first slot's header, and two of its order.
  for (const size_t at : {size_t{3}, size_t{60}, size_t{90}, size_t{400}, size_t{2000}}) {
    s.state = good;
    s.call.desc.state = s.state.data();
    bytes = reinterpret_cast<uint8_t*>(s.state.data());
    bytes[at] = static_cast<uint8_t>(bytes[at] ^ 0x40);
    expect_refused(s.call.run(), VCA_ERR_STATE, {"hint"});
    EXPECT_EQ(s.call.o.bytes(), before) << "byte " << at;
  }
  for (size_t at = 0; at < blob.size(); at += 97) {
    std::vector<uint8_t> bad = blob;
    bad[at] = static_cast<uint8_t>(bad[at] ^ 0x10);
    Steps t;
    expect_refused(
        vca_group_state_load(&t.call.desc, t.state.data(), t.bytes, bad.data(), bad.size()),
        VCA_ERR_STATE, {"blob"});
  }
  for (const size_t n : {size_t{0}, size_t{7}, blob.size() / 2, blob.size() - 1}) {
    Steps t;
    expect_refused(vca_group_state_load(&t.call.desc, t.state.data(), t.bytes, blob.data(), n),
                   VCA_ERR_STATE, {"blob"});
  }
}

TEST(State, BuffersMustBeLargeEnough) {
  Steps s;
  expect_refused(vca_group_state_init(&s.call.desc, s.state.data(), s.bytes - 1, nullptr),
                 VCA_ERR_STATE, {"too small", std::to_string(s.bytes)});
  expect_refused(vca_group_state_reset(s.state.data(), s.bytes - 1, nullptr), VCA_ERR_STATE,
                 {"shorter"});
  size_t n = 3;
  uint8_t small[3];
  expect_refused(vca_group_state_save(s.state.data(), s.bytes, small, &n), VCA_ERR_INVALID_ARGUMENT,
                 {"blob is too small", "got 3 bytes"});
}

// Every sequence of a ragged batch has an order of its own.
TEST(State, RaggedBatch) {
  Shape shape{1, 1, 1, 700, 700, 64};
  const vca_segment segments[] = {{0, 300, VCA_SEGMENT_SEQUENCE, 0},
                                  {300, 400, VCA_SEGMENT_SEQUENCE, 0}};
  Call c(shape);
  c.desc.segments = segments;
  c.desc.n_segments = 2;
  size_t bytes = 0;
  expect_ok(vca_group_state_bytes(&c.desc, &bytes));
  std::vector<uint64_t> state(bytes / 8 + 1);
  expect_ok(vca_group_state_init(&c.desc, state.data(), bytes, nullptr));
  int32_t step = 0;
  uint8_t regrouped = 9;
  c.desc.state = state.data();
  c.desc.step = &step;
  c.desc.regrouped = &regrouped;
  expect_ok(c.run());
  EXPECT_EQ(regrouped, 1);
  const std::vector<uint8_t> want = c.o.bytes();
  step = 1;
  expect_ok(c.run());
  EXPECT_EQ(regrouped, 0);
  EXPECT_EQ(c.o.bytes(), want);
}

// A buffer that ends where memory ends, inside the state that it claims to hold.
TEST(State, NothingBehindAShortBufferIsRead) {
  Steps s;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const pages =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  uint8_t* const end = static_cast<uint8_t*>(pages) + page;
  ASSERT_EQ(mprotect(end, page, PROT_NONE), 0);
  size_t blob_bytes = 0;
  for (size_t bytes = 0; bytes <= 96; bytes += 8) {
    uint8_t* const state = end - bytes;
    std::memcpy(state, s.state.data(), bytes);
    expect_refused(vca_group_state_reset(state, bytes, nullptr), VCA_ERR_STATE,
                   {"shorter", "got " + std::to_string(bytes) + " bytes"});
    expect_refused(vca_group_state_save(state, bytes, nullptr, &blob_bytes), VCA_ERR_STATE,
                   {"shorter"});
  }
  munmap(pages, 2 * page);
}

}  // namespace
}  // namespace vca::test
