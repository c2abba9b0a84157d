// SPDX-License-Identifier: Apache-2.0
// Public bug reports about sizes: offsets past 2^31, long sequences, many heads, short tails. Each
// test is named after the report's line in the bug log; the input is synthetic.
#include <sys/mman.h>

#include "tests/core/bounds.hpp"
#include "tests/core/support.hpp"

namespace vca::test {
namespace {

// Address space without memory behind it: only the pages that are touched cost anything.
class Sparse {
 public:
  explicit Sparse(size_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = p == MAP_FAILED ? nullptr : static_cast<uint16_t*>(p);
  }
  ~Sparse() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  uint16_t* data() const { return data_; }

 private:
  size_t bytes_;
  uint16_t* data_ = nullptr;
};

// A fused [S, 4, H, D] buffer with q, k, v and o side by side, its tokens so far apart that element
// offsets pass 2^31 after the third and byte offsets pass 2^32 as well.
struct FusedFar {
  static constexpr int64_t kTokens = 5, kHeads = 2, kDim = 128;
  static constexpr int64_t kTokenStride = 900000003;  // 4 * 900000003 > 2^31
  Sparse memory{static_cast<size_t>((kTokens - 1) * kTokenStride + 4 * kHeads * kDim) * 2};

  vca_tensor view(int64_t which) const {
    vca_tensor t{};
    t.data = memory.data() + which * kHeads * kDim;
    t.dtype = VCA_BF16;
    const int64_t shape[4] = {1, kHeads, kTokens, kDim};
    const int64_t stride[4] = {0, kDim, kTokenStride, 1};
    std::copy_n(shape, 4, t.shape);
    std::copy_n(stride, 4, t.stride);
    return t;
  }
  uint16_t& at(int64_t which, int64_t h, int64_t s, int64_t d) const {
    return memory.data()[which * kHeads * kDim + s * kTokenStride + h * kDim + d];
  }
  template <class F>
  void fill(int64_t which, F f) const {
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t s = 0; s < kTokens; ++s)
        for (int64_t d = 0; d < kDim; ++d) at(which, h, s, d) = spec::bf16_encode(f(h, s, d));
  }
};

TEST(BugB01, FusedViewPastTwoToThe31) {
  const FusedFar far;
  ASSERT_NE(far.memory.data(), nullptr) << "no address space";
  const auto wave = [](int64_t h, int64_t s, int64_t d) {
    return std::sin(static_cast<float>(h * 1000 + s * 131 + d * 7));
  };
  far.fill(0, wave);
  far.fill(1, [&](int64_t h, int64_t s, int64_t d) { return wave(h, s, d * 3 + 1); });
  far.fill(2, [](int64_t, int64_t, int64_t) { return 1.0f; });
  vca_attn_desc desc = vca_attn_desc_init();
  desc.q = far.view(0);
  desc.k = far.view(1);
  desc.v = far.view(2);
  desc.o = far.view(3);
  for (const spec::Recipe& r : spec::kRecipes) {
    far.fill(3, [](int64_t, int64_t, int64_t) { return 777.0f; });
    desc.recipe = static_cast<int32_t>(r.id);
    expect_ok(vca_attn_run(&desc, nullptr, 0, nullptr));
    // P and l come from different sources in the naive casts: constant V returns to the cast's
    // 2^-4, or to half a step of E2M1 and its scale.
    const bool naive = !r.v_smooth() && r.has_codes(), fp4 = r.v == spec::VFormat::nvfp4;
    for (int64_t h = 0; h < FusedFar::kHeads; ++h)
      for (int64_t s = 0; s < FusedFar::kTokens; ++s)
        for (int64_t d = 0; d < FusedFar::kDim; ++d)
          ASSERT_NEAR(spec::bf16_decode(far.at(3, h, s, d)), 1.0f,
                      fp4     ? 0.25f
                      : naive ? 0.0625f
                              : 0.0f)
              << r.name << " h " << h << " s " << s << " d " << d;
  }
}

TEST(BugB02, QuantisersPastTwoToThe31) {
  const FusedFar far;
  ASSERT_NE(far.memory.data(), nullptr) << "no address space";
  for (int64_t which = 0; which < 3; ++which)
    far.fill(which, [&](int64_t h, int64_t s, int64_t d) {
      return std::cos(static_cast<float>(which * 77 + h * 1000 + s * 131 + d * 7));
    });
  vca_attn_desc desc = vca_attn_desc_init();
  desc.q = far.view(0);
  desc.k = far.view(1);
  desc.v = far.view(2);
  const core::Request request = core::validate(&desc, core::Use::prepare);
  const spec::Problem& p = request.problem;
  spec::OwnedQ q;
  spec::allocate(*p.recipe, FusedFar::kTokens, p.d_pad, false, q);
  const std::vector<float> no_offset(128, 0.0f);
  spec::prepare_q(p, p.subs[0], 1, no_offset.data(), q.view);
  const int64_t row = FusedFar::kTokens - 1;
  const float scale = q.view.q_scale[row % 8];
  for (int64_t d = 0; d < FusedFar::kDim; ++d) {
    const auto code = static_cast<int8_t>(q.view.q_codes[row * 128 + d]);
    // Half a step, plus the rounding of scale and factor.
    EXPECT_NEAR(static_cast<float>(code) * scale, spec::bf16_decode(far.at(0, 1, row, d)),
                scale * 0.5001f)
        << d;
  }
}

// o_exact of the reference against the run of a few query rows.
double few_rows_error(Call& c) {
  expect_ok(c.run());
  vca_ref_io io{};
  io.struct_size = sizeof(io);
  std::vector<double> exact(static_cast<size_t>(c.shape.s_q * c.shape.d));
  io.o_exact = exact.data();
  expect_ok(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 0, 0, 0, c.shape.s_q, &io));
  Answer a;
  a.o = exact;
  return rel_l2(c, a);
}

TEST(BugB04, NothingQuadraticIsAllocated) {
  Call c({1, 1, 1, 4, 73774, 64});
  c.desc.grouping = VCA_GROUPING_IDENTITY;
  size_t bytes = 0;
  expect_ok(vca_attn_workspace(&c.desc, &bytes));
  // Per key: two bytes a channel, 4 bytes of order, and means and scales at 4 bytes per 128 keys
  // and channel.
  EXPECT_LT(bytes, size_t{73774 + 128} * (2 * 64 + 4 + 3 + 1) + 65536);
  EXPECT_LT(few_rows_error(c), kUnitNormalError);
}

TEST(BugB05, BeyondThreeHundredThousandKeys) {
  for (const int64_t s_kv : {299520, 299648}) {
    Call c({1, 1, 1, 2, s_kv, 32}, VCA_FP16);
    c.desc.grouping = VCA_GROUPING_IDENTITY;
    EXPECT_LT(few_rows_error(c), kUnitNormalError) << s_kv;
  }
}

TEST(BugB07, LengthMaskBeyond65536) {
  Call c({1, 1, 1, 3, 65664, 64});
  const int32_t length = 65600;
  c.desc.kv_lens = &length;
  c.desc.grouping = VCA_GROUPING_IDENTITY;
  for (int64_t s = length; s < 65664; ++s)
    for (int64_t d = 0; d < 64; ++d) c.v.set(0, 0, s, d, 1e4f);
  EXPECT_LT(few_rows_error(c), kUnitNormalError);
}

TEST(BugB08, LongSequenceCompletes) {
  Call c({1, 1, 1, 2, 178000, 32});
  c.desc.grouping = VCA_GROUPING_IDENTITY;
  c.v.fill([](int64_t, int64_t, int64_t, int64_t) { return 1.0f; });
  expect_ok(c.run());
  for (int64_t i = 0; i < 2 * 32; ++i) ASSERT_EQ(c.o.get(0, 0, i / 32, i % 32), 1.0f);
}

TEST(BugB10, EveryTailOfABlock) {
  for (const int64_t tail : {1, 63, 64, 65, 100, 127}) {
    Call c({1, 1, 1, 40, 256 + tail, 64});
    expect_ok(c.run());
    EXPECT_LT(rel_l2(c, oracle(c)), kUnitNormalError) << tail;
  }
}

TEST(BugB34, MoreThan65535BatchesAndHeads) {
  for (const auto& [b, h] : {std::pair<int64_t, int64_t>{70000, 1}, {5, 14000}}) {
    Call one({1, 1, 1, 2, 2, 8});
    expect_ok(one.run());
    Call many({1, 1, 1, 2, 2, 8});
    many.o = Tensor(b, h, 2, 8, VCA_BF16, Layout::hnd);
    many.bind();
    for (vca_tensor* t : {&many.desc.q, &many.desc.k, &many.desc.v}) {
      t->shape[0] = b;
      t->shape[1] = h;
      t->stride[0] = t->stride[1] = 0;
    }
    expect_ok(many.run());
    int64_t wrong = 0;
    for (int64_t i = 0; i < b; ++i)
      for (int64_t j = 0; j < h; ++j)
        for (int64_t e = 0; e < 16; ++e)
          wrong += many.o.bits(i, j, e / 8, e % 8) != one.o.bits(0, 0, e / 8, e % 8);
    EXPECT_EQ(wrong, 0) << "B " << b << " H " << h;
  }
}

}  // namespace
}  // namespace vca::test
