// SPDX-License-Identifier: Apache-2.0
// The NVFP4 recipes behind the C ABI: the cap on the scores of the query means, the group state and
// workspace, and which targets refuse.
#include <cstdlib>

#include "core/delta.hpp"
#include "tests/core/support.hpp"

namespace vca::test {
namespace {

constexpr int32_t kFourBit[] = {VCA_RECIPE_FP4, VCA_RECIPE_SAGE3, VCA_RECIPE_VC4_PAPER,
                                VCA_RECIPE_VC4, VCA_RECIPE_VC4_INT8QK};

class DeltaCap {
 public:
  explicit DeltaCap(const char* mib) { setenv("VCATTN_DELTA_MIB", mib, 1); }
  ~DeltaCap() { unsetenv("VCATTN_DELTA_MIB"); }
};

TEST(DeltaChunks, AsManyRowsAsFitAndOneAtLeast) {
  using core::delta_chunk_ends;
  EXPECT_EQ(delta_chunk_ends({10, 10, 10, 10, 10}, 20), (std::vector<int64_t>{2, 4, 5}));
  EXPECT_EQ(delta_chunk_ends({10, 10}, 100), (std::vector<int64_t>{2}));
  EXPECT_EQ(delta_chunk_ends({50, 10, 50}, 20), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(delta_chunk_ends({}, 20).empty());
}

TEST(DeltaChunks, TheCapChangesNoBit) {
  // 3 heads of 9 query blocks against 8,192 keys: 27 rows of 32 KiB, so 1 MiB splits nothing but a
  // row list of 32; longer keys split it.
  Call c({1, 3, 1, 1100, 40000, 64});
  c.desc.recipe = VCA_RECIPE_SAGE3;
  c.with_lse();
  expect_ok(c.run());
  const std::vector<uint8_t> whole = c.o.bytes();
  const std::vector<float> lse = c.lse;
  const DeltaCap cap("1");  // 6 rows of 160 KB
  EXPECT_EQ(core::delta_cap_bytes(), 1 << 20);
  std::fill(c.o.bytes().begin(), c.o.bytes().end(), uint8_t{0});
  expect_ok(c.run());
  EXPECT_EQ(c.o.bytes(), whole);
  EXPECT_EQ(c.lse, lse);
}

TEST(DeltaChunks, ABadCapIsRefusedBeforeAnyWork) {
  for (const char* bad : {"0", "-1", "x", "12M", "99999999999999999999"}) {
    const DeltaCap cap(bad);
    Call c({1, 1, 1, 10, 20, 64});
    c.desc.recipe = VCA_RECIPE_SAGE3;
    const std::vector<uint8_t> before = c.o.bytes();
    expect_refused(c.run(), VCA_ERR_INVALID_ARGUMENT, {"VCATTN_DELTA_MIB", bad, "1 .. "});
    EXPECT_EQ(c.o.bytes(), before);
    c.desc.recipe = VCA_RECIPE_VC4_INT8QK;  // which takes no query means
    expect_ok(c.run());
  }
}

TEST(FourBit, PrepareThenAttendNeedsNoInputs) {
  for (const int32_t recipe : kFourBit) {
    Call c({1, 2, 1, 200, 300, 80});
    c.desc.recipe = recipe;
    expect_ok(c.run());
    const std::vector<uint8_t> want = c.o.bytes();
    Room room(c);
    expect_ok(vca_attn_prepare(&c.desc, room.data, room.bytes, nullptr));
    for (Tensor* t : {&c.q, &c.k, &c.v})
      std::fill(t->bytes().begin(), t->bytes().end(), uint8_t{0xFF});
    std::fill(c.o.bytes().begin(), c.o.bytes().end(), uint8_t{0});
    expect_ok(vca_attn_attend(&c.desc, room.data, room.bytes, nullptr));
    EXPECT_EQ(c.o.bytes(), want) << vca_recipe_str(recipe);
  }
}

TEST(FourBit, TargetsWithoutNvfp4AreRefused) {
  for (const int32_t recipe : kFourBit) {
    Call c({1, 1, 1, 4, 200, 64});
    c.desc.recipe = recipe;
    std::vector<float> o(4 * 64);
    vca_ref_io io{};
    io.struct_size = sizeof(io);
    io.o = o.data();
    for (const int32_t target : {VCA_TARGET_SM89, VCA_TARGET_SM90})
      expect_refused(vca_ref_attn(&c.desc, target, 0, 0, 0, 4, &io), VCA_ERR_UNSUPPORTED,
                     {"needs NVFP4 matrix instructions", "has none", "sm120"});
    for (const int32_t target :
         {VCA_TARGET_CPU, VCA_TARGET_SM100, VCA_TARGET_SM103, VCA_TARGET_SM120})
      expect_ok(vca_ref_attn(&c.desc, target, 0, 0, 0, 4, &io));
    std::vector<uint8_t> codes(4 * 256);
    io.codes = codes.data();
    expect_refused(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 0, 0, 0, 4, &io), VCA_ERR_INVALID_ARGUMENT,
                   {"has no such intermediate value"});
  }
}

}  // namespace
}  // namespace vca::test
