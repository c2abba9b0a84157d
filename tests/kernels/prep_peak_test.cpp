// SPDX-License-Identifier: Apache-2.0
// What a call takes at its peak, beside SageAttention2.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/prep_sizes.hpp"

namespace vca {
namespace {

using namespace kernels;
using tests::request_of;
using tests::Shape;

// SageAttention 2 on compute capability 9.0, as its public code allocates for 16-bit tensors of
// head_dim 64 or 128 (thu-ml/SageAttention d1a57a5, sageattention/core.py, quant.py and
// triton/quant_per_thread.py; what the peer of bench/peers runs). q, k and v are the caller's and
// stay. In turn:
//
//   step                          it holds from there on             only for the step
//   mean of K                     km [b, h_kv, d], not counted here
//   codes of Q and K              1 byte an element each; scales:    k - km, 2 bytes an element
//                                 128 bytes for 64 rows of Q,
//                                 16 for 128 rows of K
//   o                             2 bytes an element of q
//   V padded with zeros, where    2 bytes an element, keys rounded
//   S_kv mod 128 is not 0         up to a multiple of 128
//   V transposed and permuted                                        2 bytes an element of that
//   codes of V                    1 byte an element of that
//
// V's transposed copy lives until its codes are made: o is there by then, so the peak is that step
// and not the kernel. The step of K's copy is smaller whatever the shape: it has neither o nor
// anything of V, and V's copy is not smaller than K's.
//
// With an LSE: 4 bytes a row of q . km from the start; at the end 16 more (the kernel's LSE, that
// in natural units, the scaled q . km and their sum), when V's copies are gone.
int64_t peak_of_sageattention2(const Shape& s, bool lse) {
  const int64_t rows = s.b * s.h_q * s.s_q, q = rows * s.d, k = s.b * s.h_kv * s.s_kv * s.d;
  const int64_t padded = prep::ceil_div(s.s_kv, 128) * 128;
  const int64_t v = s.b * s.h_kv * padded * s.d;
  const int64_t scales =
      s.b * (s.h_q * prep::ceil_div(s.s_q, 64) * 128 + s.h_kv * prep::ceil_div(s.s_kv, 128) * 16);
  const int64_t held = 2 * q + 4 * k + q + k + scales + 2 * q + (padded != s.s_kv ? 2 * v : 0) + v;
  return lse ? std::max(held + 4 * rows + 2 * v, held + 20 * rows) : held + 2 * v;
}

// q, k, v, o, the workspace and the group state.
int64_t peak_of_a_call(const Shape& s, spec::Grouping kind, bool lse) {
  prep::PrepParams r = request_of(s, "vc8", kind);
  r.lse = lse;
  int64_t state = 0;
  if (kind != spec::Grouping::identity) {
    r.grouping.state = &state;
    const prep::Layout layout(r);
    state = group::StateLayout(layout.n_units, layout.group->places).bytes;
  }
  const int64_t rows = s.b * s.h_q * s.s_q, q = rows * s.d, k = s.b * s.h_kv * s.s_kv * s.d;
  return 2 * q + 4 * k + 2 * q + prep::workspace_bytes(r) + state + (lse ? 4 * rows : 0);
}

TEST(PrepPeak, IsBelowSageAttention2) {
  // Those of bench/shapes.json, head_dim 64, grouped queries, batches.
  const Shape shapes[] = {{1, 40, 40, 75600, 75600, 128},   {1, 40, 40, 32760, 32760, 128},
                          {1, 16, 16, 113585, 113585, 128}, {1, 32, 32, 37440, 37440, 128},
                          {1, 56, 56, 38010, 38010, 128},   {1, 56, 56, 73774, 73774, 128},
                          {1, 56, 56, 167000, 167000, 128}, {1, 5, 5, 75600, 75600, 128},
                          {1, 2, 2, 113585, 113585, 128},   {1, 4, 4, 37440, 37440, 128},
                          {1, 7, 7, 109362, 109362, 128},   {1, 40, 40, 18900, 18900, 128},
                          {1, 40, 40, 9450, 9450, 128},     {1, 40, 40, 75600, 512, 128},
                          {1, 32, 32, 37440, 512, 128},     {1, 40, 40, 1024, 1024, 128},
                          {1, 40, 40, 2048, 2048, 128},     {1, 40, 40, 4096, 4096, 128},
                          {1, 40, 40, 8192, 8192, 128},     {1, 40, 40, 32768, 32768, 128},
                          {1, 40, 40, 65536, 65536, 128},   {1, 2, 2, 4096, 4096, 128},
                          {1, 40, 40, 16384, 16384, 128},   {1, 40, 40, 131072, 131072, 128},
                          {1, 4, 4, 1024, 1024, 128},       {1, 24, 24, 16384, 16384, 64},
                          {1, 32, 8, 16384, 16384, 128},    {2, 24, 24, 4096, 4096, 128}};
  for (const Shape& s : shapes)
    for (const spec::Grouping kind :
         {spec::Grouping::identity, spec::Grouping::cubes, spec::Grouping::kmeans,
          spec::Grouping::kdtree, spec::Grouping::vsmooth})
      for (const bool lse : {false, true})
        EXPECT_LT(peak_of_a_call(s, kind, lse), peak_of_sageattention2(s, lse))
            << s.h_q << " heads, " << s.s_q << " x " << s.s_kv << ", " << spec::to_string(kind)
            << (lse ? ", lse" : "");
}

// Bytes a token and head in the table of docs/architecture.md; its lines are rounded, so a sum of
// them may be off by one.
TEST(PrepPeak, FiguresOfTheArchitecturePage) {
  const Shape main{1, 40, 40, 75600, 75600, 128}, whole{1, 40, 40, 75648, 75648, 128};
  const auto each = [](const Shape& s, int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(s.h_q * s.s_q);
  };
  const auto plain = request_of(main, "vc8", spec::Grouping::identity);
  const auto grouped = request_of(main, "vc8", spec::Grouping::vsmooth);
  EXPECT_NEAR(each(main, prep::workspace_bytes(plain)), 399, 0.5);
  EXPECT_EQ(prep::workspace_bytes(grouped), prep::workspace_bytes(plain));
  EXPECT_NEAR(each(main, prep::Layout(grouped).group->bytes), 148, 0.5);
  EXPECT_NEAR(each(main, peak_of_a_call(main, spec::Grouping::identity, false)), 1423, 1);
  EXPECT_NEAR(each(main, peak_of_a_call(main, spec::Grouping::vsmooth, false)), 1427, 1);
  EXPECT_NEAR(each(main, peak_of_sageattention2(main, false)), 1922, 1);
  EXPECT_NEAR(each(whole, peak_of_sageattention2(whole, false)), 1666, 1);
}

}  // namespace
}  // namespace vca
