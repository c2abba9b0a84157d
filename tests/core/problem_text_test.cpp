// SPDX-License-Identifier: Apache-2.0
// Problems as text: one form for each problem, and everything else is refused with a reason.
#include "core/problem_text.hpp"

#include <gtest/gtest.h>

#include <set>

namespace vca::core {
namespace {

TEST(ProblemText, EveryFieldFindsItsPlace) {
  const ProblemText p = parse_problem("b2 hq6 hkv3 sq70 skv90 d72 fp16 len81 nhd");
  EXPECT_EQ(p.b, 2);
  EXPECT_EQ(p.h_q, 6);
  EXPECT_EQ(p.h_kv, 3);
  EXPECT_EQ(p.s_q, 70);
  EXPECT_EQ(p.s_kv, 90);
  EXPECT_EQ(p.d, 72);
  EXPECT_EQ(p.dtype, VCA_FP16);
  EXPECT_EQ(p.kv_len, 81);
  EXPECT_EQ(p.memory, ProblemMemory::nhd);
  EXPECT_EQ(p.keys(), 81);
  EXPECT_EQ(p.flops(), 4.0 * 2 * 6 * 70 * 81 * 72);
}

TEST(ProblemText, TextAndProblemAreOneToOne) {
  for (const char* text :
       {"b1 hq40 hkv40 sq75600 skv75600 d128 bf16", "b1 hq1 hkv1 sq0 skv0 d1 fp32",
        "b3 hq56 hkv56 sq9 skv9 d64 fp16 fused", "b1 hq4 hkv2 sq9 skv8 d64 bf16 len0",
        "b1 hq4 hkv4 sq9 skv9 d64 bf16 len9 fused", "b2147483647 hq4 hkv2 sq9 skv8 d64 bf16 nhd"}) {
    EXPECT_EQ(to_text(parse_problem(text)), text);
  }
  // A key length of all keys is written, where none is not.
  EXPECT_NE(parse_problem("b1 hq1 hkv1 sq8 skv8 d8 bf16"),
            parse_problem("b1 hq1 hkv1 sq8 skv8 d8 bf16 len8"));
}

TEST(ProblemText, EverythingElseIsRefusedWithItsReason) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "words missing"},
      {"b1 hq1 hkv1 sq8 skv8 d8", "words missing"},
      {"b1 hq1 hkv1 sq8 skv8 d8 bf16 ", "does not belong"},
      {"b1  hq1 hkv1 sq8 skv8 d8 bf16", "\"hq\""},
      {" b1 hq1 hkv1 sq8 skv8 d8 bf16", "\"b\""},
      {"hq1 b1 hkv1 sq8 skv8 d8 bf16", "\"b\""},
      {"b0 hq1 hkv1 sq8 skv8 d8 bf16", "\"b\""},
      {"b01 hq1 hkv1 sq8 skv8 d8 bf16", "leading zeros"},
      {"b+1 hq1 hkv1 sq8 skv8 d8 bf16", "\"b\""},
      {"b1 hq-1 hkv1 sq8 skv8 d8 bf16", "\"hq\""},
      {"b1 hq0 hkv1 sq8 skv8 d8 bf16", "\"hq\""},
      {"b1 hq3 hkv2 sq8 skv8 d8 bf16", "multiple"},
      {"b1 hq1 hkv1 sq2147483648 skv8 d8 bf16", "\"sq\""},
      {"b1 hq1 hkv1 sq99999999999999999999 skv8 d8 bf16", "\"sq\""},
      {"b1 hq1 hkv1 sq8 skv d8 bf16", "\"skv\""},
      {"b1 hq1 hkv1 sq8 skv8x d8 bf16", "\"skv\""},
      {"b1 hq1 hkv1 sq8 skv8 d0 bf16", "\"d\""},
      {"b1 hq1 hkv1 sq8 skv8 d129 bf16", "1..128"},
      {"b1 hq1 hkv1 sq8 skv8 d8 BF16", "bf16, fp16, fp32"},
      {"b1 hq1 hkv1 sq8 skv8 d8 bf16 len9", "0..8"},
      {"b1 hq1 hkv1 sq8 skv8 d8 bf16 len", "\"len\""},
      {"b1 hq1 hkv1 sq8 skv8 d8 bf16 nhd len8", "does not belong"},
      {"b1 hq1 hkv1 sq8 skv8 d8 bf16 hnd", "does not belong"},
      {"b1 hq1 hkv1 sq8 skv8 d8 bf16 nhd nhd", "does not belong"},
      {"b1 hq2 hkv1 sq8 skv8 d8 bf16 fused", "hq = hkv"},
      {"b1 hq1 hkv1 sq8 skv9 d8 bf16 fused", "sq = skv"},
  };
  for (const auto& [text, words] : cases) {
    try {
      parse_problem(text);
      ADD_FAILURE() << "taken: \"" << text << "\"";
    } catch (const ProblemTextError& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << text << ": " << e.what();
      EXPECT_FALSE(e.wrong.empty() || e.got.empty() || e.allowed.empty()) << text;
    }
  }
}

// Every element of q, k and v has an address of its own inside its buffer, and together they fill
// the buffers.
TEST(ProblemText, ViewsTileTheirBuffers) {
  for (const char* text : {"b2 hq4 hkv2 sq3 skv5 d6 bf16", "b2 hq4 hkv2 sq3 skv5 d6 bf16 nhd",
                           "b2 hq3 hkv3 sq5 skv5 d6 bf16 fused"}) {
    const ProblemText p = parse_problem(text);
    std::set<std::pair<int, int64_t>> used;
    int64_t elements = 0;
    for (int which = 0; which < 3; ++which) {
      const ProblemView v = view_of(p, which);
      EXPECT_EQ(v.shape, (std::array<int64_t, 4>{p.b, which == 0 ? p.h_q : p.h_kv,
                                                 which == 0 ? p.s_q : p.s_kv, p.d}));
      for (int64_t b = 0; b < v.shape[0]; ++b)
        for (int64_t h = 0; h < v.shape[1]; ++h)
          for (int64_t s = 0; s < v.shape[2]; ++s)
            for (int64_t d = 0; d < v.shape[3]; ++d, ++elements)
              used.insert({v.buffer, v.offset + b * v.stride[0] + h * v.stride[1] +
                                         s * v.stride[2] + d * v.stride[3]});
    }
    EXPECT_EQ(static_cast<int64_t>(used.size()), elements) << text;
    int64_t total = 0;
    for (int i = 0; i < (p.memory == ProblemMemory::fused ? 1 : 3); ++i) {
      for (const auto& [buffer, at] : used)
        if (buffer == i) {
          EXPECT_LT(at, buffer_elements(p, i));
        }
      total += buffer_elements(p, i);
    }
    EXPECT_EQ(total, elements) << text;
  }
}

// 3 * 56 heads * 128: the token stride of MiniMax-H3's fused projection.
TEST(ProblemText, FusedTokenStride) {
  const ProblemText p = parse_problem("b1 hq56 hkv56 sq38010 skv38010 d128 bf16 fused");
  EXPECT_EQ(view_of(p, 2).stride[2], 21504);
  EXPECT_EQ(view_of(p, 2).offset, 2 * 7168);
}

}  // namespace
}  // namespace vca::core
