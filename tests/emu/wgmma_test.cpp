// SPDX-License-Identifier: Apache-2.0
// Operands, fragments and arithmetic of wgmma in the emulator, and its rules for registers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "emu/launch.hpp"
#include "emu/mma_exec.hpp"
#include "emu/operand.hpp"
#include "emu/random.hpp"
#include "ptx/ptx.hpp"
#include "spec/codes.hpp"

namespace vca::emu {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// ---- operands ------------------------------------------------------------------------------

// Figures of PTX ISA 9.7.15.5.1 (K-major, swizzling modes), by hand: 16-byte chunk c of row r.
TEST(Operand, SwizzledChunksByHand) {
  std::vector<uint32_t> chunks;
  ASSERT_EQ(operand_chunks(ptx::matrix_desc_bits(0x400, ptx::Swizzle::b128), 64, chunks), "");
  ASSERT_EQ(chunks.size(), 128u);
  EXPECT_EQ(chunks[0], 0x400u);
  EXPECT_EQ(chunks[1], 0x410u);
  EXPECT_EQ(chunks[2], 0x400u + 128 + 16);  // row 1: chunk 0 sits in place 1
  EXPECT_EQ(chunks[3], 0x400u + 128 + 0);   // and chunk 1 in place 0
  EXPECT_EQ(chunks[2 * 5], 0x400u + 5 * 128 + 5 * 16);
  EXPECT_EQ(chunks[2 * 7 + 1], 0x400u + 7 * 128 + 6 * 16);
  EXPECT_EQ(chunks[2 * 8], 0x400u + 1024);  // the pattern repeats
  // The second k step starts 32 bytes into the row.
  ASSERT_EQ(operand_chunks(ptx::matrix_desc_bits(0x420, ptx::Swizzle::b128), 64, chunks), "");
  EXPECT_EQ(chunks[0], 0x420u);
  EXPECT_EQ(chunks[2], 0x400u + 128 + 3 * 16);
  EXPECT_EQ(chunks[2 * 2 + 1], 0x400u + 2 * 128 + 1 * 16);
  ASSERT_EQ(operand_chunks(ptx::matrix_desc_bits(0x400, ptx::Swizzle::b64), 64, chunks), "");
  EXPECT_EQ(chunks[2 * 1], 0x400u + 64);
  EXPECT_EQ(chunks[2 * 2], 0x400u + 128 + 16);
  EXPECT_EQ(chunks[2 * 6], 0x400u + 6 * 64 + 3 * 16);
  EXPECT_EQ(chunks[2 * 8], 0x400u + 512);
  ASSERT_EQ(operand_chunks(ptx::matrix_desc_bits(0x400, ptx::Swizzle::b32), 64, chunks), "");
  EXPECT_EQ(chunks[2 * 3], 0x400u + 96);
  EXPECT_EQ(chunks[2 * 4], 0x400u + 128 + 16);
  EXPECT_EQ(chunks[2 * 4 + 1], 0x400u + 128);
  EXPECT_EQ(chunks[2 * 8], 0x400u + 256);
}

TEST(Operand, UnswizzledCoreMatrices) {
  // Leading offset 256 (along K), stride 512 (along rows), no swizzle.
  const uint64_t bits = uint64_t{0x800 >> 4} | uint64_t{256 >> 4} << 16 | uint64_t{512 >> 4} << 32;
  std::vector<uint32_t> chunks;
  ASSERT_EQ(operand_chunks(bits, 16, chunks), "");
  EXPECT_EQ(chunks[0], 0x800u);
  EXPECT_EQ(chunks[1], 0x900u);
  EXPECT_EQ(chunks[2 * 7], 0x800u + 7 * 16);
  EXPECT_EQ(chunks[2 * 8], 0x800u + 512);
  EXPECT_EQ(chunks[2 * 9 + 1], 0x800u + 512 + 16 + 256);
}

TEST(Operand, AllKStepsTogetherReadTheTileOnce) {
  for (const auto& [swizzle, width] :
       {std::pair{ptx::Swizzle::b128, 128u}, {ptx::Swizzle::b64, 64u}, {ptx::Swizzle::b32, 32u}}) {
    std::set<uint32_t> seen;
    for (uint32_t k = 0; k < width; k += 32) {
      std::vector<uint32_t> chunks;
      ASSERT_EQ(operand_chunks(ptx::matrix_desc_bits(0x2000 + k, swizzle), 136, chunks), "");
      for (const uint32_t address : chunks) {
        EXPECT_TRUE(seen.insert(address).second);
        EXPECT_GE(address, 0x2000u);
        EXPECT_LT(address, 0x2000u + 136 * width);
      }
    }
    EXPECT_EQ(seen.size(), 136u * width / 16);
  }
}

TEST(Operand, RefusesWhatTheHardwareWouldReadElsewhere) {
  std::vector<uint32_t> chunks;
  EXPECT_THAT(operand_chunks(ptx::matrix_desc_bits(0x480, ptx::Swizzle::b128), 64, chunks),
              HasSubstr("not aligned to the swizzle pattern of 1024"));
  EXPECT_THAT(operand_chunks(ptx::matrix_desc_bits(0x470, ptx::Swizzle::b128), 64, chunks),
              HasSubstr("leaves the swizzled row"));
  EXPECT_THAT(operand_chunks(ptx::matrix_desc_bits(0x410, ptx::Swizzle::b32), 64, chunks),
              HasSubstr("leaves the swizzled row"));
  EXPECT_THAT(operand_chunks(ptx::matrix_desc_bits(0x400, ptx::Swizzle::b128) | uint64_t{1} << 49,
                             64, chunks),
              HasSubstr("base offset 1"));
}

// ---- fragments -----------------------------------------------------------------------------

TEST(Fragment, EveryElementHasOneRegister) {
  for (const uint32_t n : {64u, 72u, 128u, 136u}) {
    std::set<std::pair<uint32_t, uint32_t>> seen;
    for (uint32_t t = 0; t < 128; ++t) {
      for (uint32_t i = 0; i < n / 2; ++i) {
        EXPECT_LT(d_row(t, i), 64u);
        EXPECT_LT(d_column(t, i), n);
        seen.insert({d_row(t, i), d_column(t, i)});
      }
    }
    EXPECT_EQ(seen.size(), 64u * n);
  }
  // By hand, from the figure: thread 37 = warp 1, lane 5.
  EXPECT_EQ(d_row(37, 0), 17u);
  EXPECT_EQ(d_column(37, 0), 2u);
  EXPECT_EQ(d_row(37, 3), 25u);
  EXPECT_EQ(d_column(37, 3), 3u);
  EXPECT_EQ(d_column(37, 4), 10u);
  EXPECT_EQ(a_row(37, 1), 25u);
  EXPECT_EQ(a_byte(37, 1), 4u);
  EXPECT_EQ(a_byte(37, 2), 20u);
}

// ---- arithmetic ----------------------------------------------------------------------------

// The rules of spec/mma_model.hpp for one group, once more and directly: align to the largest
// exponent, cut to F fractional bits, add, cut to the output width.
float fused(const std::vector<std::pair<float, float>>& products, float c, int f, int out_bits,
            int min_exponent) {
  const auto exponent_of = [](float x, int floor) {
    return x == 0.0f ? floor : std::max(std::ilogb(x), floor);
  };
  int top = exponent_of(c, -126);
  for (const auto& [a, b] : products) {
    if (a == 0.0f || b == 0.0f) continue;
    top = std::max(top, exponent_of(a, min_exponent) + exponent_of(b, min_exponent));
  }
  const auto cut = [](double x, int unit) {
    return std::ldexp(std::trunc(std::ldexp(x, -unit)), unit);
  };
  double sum = cut(c, top - f);
  for (const auto& [a, b] : products) sum += cut(static_cast<double>(a) * b, top - f);
  if (sum == 0.0) return 0.0f;
  const int unit = std::max(std::ilogb(sum), -126) - out_bits;
  return static_cast<float>(cut(sum, unit) + 0.0);
}

uint8_t random_code(Random& random) {
  const uint8_t code = static_cast<uint8_t>(random.next() >> 40);
  return (code & 0x7F) == 0x7F ? 0 : code;
}

TEST(Arithmetic, E4m3IsTheFusedRule) {
  Random random(9);
  for (int trial = 0; trial < 6; ++trial) {
    const uint32_t n = trial % 2 == 0 ? 136 : 72;
    std::vector<uint8_t> a(64 * 32), b(n * 32);
    // Trials with small, large, sparse and subnormal codes.
    for (uint8_t& x : a)
      x = random.below(4) < static_cast<uint32_t>(trial) ? 0 : random_code(random);
    for (uint8_t& x : b) {
      x = random_code(random);
      if (trial == 4) x &= 0x87;
    }
    std::vector<uint32_t> d(64 * n), start;
    for (uint32_t& x : d) {
      const float value = std::ldexp(static_cast<float>(static_cast<int32_t>(random.next())),
                                     -20 - static_cast<int>(random.below(20)));
      x = spec::float_bits(value);
    }
    start = d;
    mma_execute(MmaType::e4m3, n, a.data(), b.data(), d.data());
    for (uint32_t row = 0; row < 64; ++row) {
      for (uint32_t column = 0; column < n; ++column) {
        std::vector<std::pair<float, float>> products;
        for (uint32_t k = 0; k < 32; ++k) {
          products.emplace_back(spec::e4m3_decode(a[row * 32 + k]),
                                spec::e4m3_decode(b[column * 32 + k]));
        }
        const float want =
            fused(products, spec::float_from_bits(start[row * n + column]), 13, 13, -6);
        ASSERT_EQ(d[row * n + column], spec::float_bits(want))
            << "trial " << trial << " row " << row << " column " << column;
      }
    }
  }
}

TEST(Arithmetic, Tf32IsTheFusedRuleOnTruncatedOperands) {
  Random random(10);
  std::vector<uint8_t> a(64 * 32), b(128 * 32);
  const auto fill = [&random](std::vector<uint8_t>& bytes) {
    for (size_t i = 0; i < bytes.size(); i += 4) {
      const float value = std::ldexp(static_cast<float>(static_cast<int32_t>(random.next())),
                                     -31 + static_cast<int>(random.below(12)));
      std::memcpy(&bytes[i], &value, 4);  // low mantissa bits set: the instruction ignores them
    }
  };
  fill(a);
  fill(b);
  std::vector<uint32_t> d(64 * 128);
  for (uint32_t& x : d)
    x = spec::float_bits(static_cast<float>(static_cast<int32_t>(random.next())) * 0x1p-28f);
  const std::vector<uint32_t> start = d;
  mma_execute(MmaType::tf32, 128, a.data(), b.data(), d.data());
  const auto tf32 = [](const uint8_t* p) {
    uint32_t bits;
    std::memcpy(&bits, p, 4);
    return spec::float_from_bits(bits >> 13 << 13);
  };
  for (uint32_t row = 0; row < 64; ++row) {
    for (uint32_t column = 0; column < 128; ++column) {
      std::vector<std::pair<float, float>> products;
      for (uint32_t k = 0; k < 8; ++k) {
        products.emplace_back(tf32(&a[row * 32 + 4 * k]), tf32(&b[column * 32 + 4 * k]));
      }
      const float want =
          fused(products, spec::float_from_bits(start[row * 128 + column]), 25, 23, -126);
      ASSERT_EQ(d[row * 128 + column], spec::float_bits(want)) << row << " " << column;
    }
  }
}

TEST(Arithmetic, IntegersAreExactAtTheExtremes) {
  std::vector<uint8_t> a(64 * 32, 0x80), b(128 * 32, 0x80);
  std::vector<uint32_t> d(64 * 128, 5);
  mma_execute(MmaType::s8, 128, a.data(), b.data(), d.data());
  for (const uint32_t x : d) EXPECT_EQ(x, 32u * 16384u + 5u);
  std::fill(b.begin(), b.end(), 127);
  std::fill(d.begin(), d.end(), 0u);
  mma_execute(MmaType::s8, 128, a.data(), b.data(), d.data());
  for (const uint32_t x : d) EXPECT_EQ(static_cast<int32_t>(x), -32 * 128 * 127);
}

// ---- registers -----------------------------------------------------------------------------

// One warpgroup with two 8 KB operands of zeros in shared memory, written by its threads.
template <class Body>
std::string text_of(Body body) {
  LaunchConfig config;
  config.threads = 128;
  config.smem_bytes = 2 * 128 * 64;
  try {
    launch(config, [&body] {
      const ptx::SmemAddr smem = ptx::dynamic_smem();
      for (uint32_t i = 0; i < 32; ++i) {
        ptx::st_shared_f32(smem + 4 * (ptx::thread_index() * 32 + i), 0.0f);
      }
      ptx::fence_proxy_async_shared_cta();
      ptx::bar_sync(0, 128);
      body(ptx::matrix_desc(smem, ptx::Swizzle::b64),
           ptx::matrix_desc(smem + 128 * 64, ptx::Swizzle::b64));
    });
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "no fault";
}

void finish() {
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
}

using Desc = ptx::MatrixDesc;

TEST(RegisterRules, AChainOnOneAccumulatorNeedsOneFence) {
  EXPECT_EQ(text_of([](Desc a, Desc b) {
              int32_t d[64];
              for (int32_t& x : d) x = 7;
              ptx::wgmma_fence();
              ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, true);
              ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, true);
              finish();
              ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, true);  // untouched since the wait
              finish();
              for (int32_t& x : d) EXPECT_EQ(x, 7);
            }),
            "no fault");
}

TEST(RegisterRules, AccessAfterTheWaitNeedsAFence) {
  EXPECT_THAT(text_of([](Desc a, Desc b) {
                int32_t d[64] = {};
                ptx::wgmma_fence();
                ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, true);
                finish();
                d[3] += 1;
                ptx::keep(d[3]);
                ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, true);
                finish();
              }),
              HasSubstr("accumulator: released by wait_group since the last wgmma.fence"));
  // Restarting an accumulator whose values have been given out.
  EXPECT_THAT(text_of([](Desc a, Desc b) {
                int32_t d[64] = {};
                ptx::wgmma_fence();
                ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, true);
                finish();
                ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, false);
                finish();
              }),
              HasSubstr("released by wait_group since the last wgmma.fence"));
  EXPECT_THAT(text_of([](Desc a, Desc b) {
                int32_t d[64] = {};
                ptx::wgmma_fence();
                ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, true);
                finish();
                ptx::wgmma_fence();
                d[3] += 1;
                ptx::keep(d[3]);
                ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, true);
                finish();
              }),
              HasSubstr("accumulator: written since the last wgmma.fence"));
}

TEST(RegisterRules, TwoShapesOnOneAccumulator) {
  const auto body = [](bool wait, bool fence) {
    return [wait, fence](Desc, Desc b) {
      float d[68] = {};
      uint32_t a[4] = {};
      ptx::wgmma_fence();
      const Desc wide = {b.low, (1024u >> 4) | 1u << 30};  // SW128
      ptx::wgmma_m64n72k32_f32_e4m3_e4m3(*reinterpret_cast<float(*)[36]>(d), a, wide, true);
      ptx::wgmma_commit_group();
      if (wait) ptx::wgmma_wait_group<0>();
      if (fence) ptx::wgmma_fence();
      uint32_t r[4] = {};
      ptx::wgmma_m64n64k8_f32_tf32_tf32(d, r, wide, true);
      finish();
    };
  };
  // 72 rows of 128 bytes do not fit behind the first operand; 9 KB are there when A's room is used.
  const auto run = [&](bool wait, bool fence) {
    return text_of([&](Desc a, Desc) { body(wait, fence)(a, a); });
  };
  EXPECT_EQ(run(true, true), "no fault");
  EXPECT_THAT(run(false, true), HasSubstr("belong in another shape or role"));
  EXPECT_THAT(run(true, false), HasSubstr("in another shape or role since the last wgmma.fence"));
}

TEST(RegisterRules, ValuesAreNotThereBeforeTheWait) {
  EXPECT_EQ(text_of([](Desc a, Desc b) {
              int32_t d[64] = {};
              ptx::wgmma_fence();
              ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, false);
              ptx::wgmma_commit_group();
              EXPECT_NE(d[0], 0);
              EXPECT_NE(d[63], 0);
              ptx::wgmma_wait_group<0>();
              EXPECT_EQ(d[0], 0);
              EXPECT_EQ(d[63], 0);
            }),
            "no fault");
}

TEST(RegisterRules, WaitLeavesTheYoungestGroups) {
  EXPECT_EQ(text_of([](Desc a, Desc b) {
              int32_t d[64] = {}, e[64] = {};
              ptx::wgmma_fence();
              ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, false);
              ptx::wgmma_commit_group();
              ptx::wgmma_m64n128k32_s32_s8_s8(e, a, b, false);
              ptx::wgmma_commit_group();
              ptx::wgmma_wait_group<1>();
              EXPECT_EQ(d[5], 0);
              EXPECT_NE(e[5], 0);
              ptx::wgmma_wait_group<0>();
              EXPECT_EQ(e[5], 0);
            }),
            "no fault");
}

TEST(RegisterRules, OneAFragmentInTwoProducts) {
  EXPECT_EQ(text_of([](Desc a, Desc) {
              float d[36], e[36];
              uint32_t p[4] = {0x38383838u, 0x38383838u, 0x38383838u, 0x38383838u};
              const Desc wide = {a.low, (1024u >> 4) | 1u << 30};
              ptx::wgmma_fence();
              ptx::wgmma_m64n72k32_f32_e4m3_e4m3(d, p, wide, false);
              ptx::wgmma_m64n72k32_f32_e4m3_e4m3(e, p, wide, false);
              finish();
              EXPECT_EQ(p[2], 0x38383838u);
              EXPECT_EQ(d[0], 0.0f);
              EXPECT_EQ(e[35], 0.0f);
            }),
            "no fault");
}

TEST(RegisterRules, ThreadsMustAgree) {
  EXPECT_THAT(text_of([](Desc a, Desc b) {
                int32_t d[64] = {};
                ptx::wgmma_fence();
                ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, ptx::thread_index() != 77);
                finish();
              }),
              HasSubstr("threads of the warpgroup differ"));
  EXPECT_THAT(text_of([](Desc a, Desc b) {
                int32_t d[64] = {};
                ptx::wgmma_fence();
                if (ptx::thread_index() != 77) ptx::wgmma_m64n128k32_s32_s8_s8(d, a, b, true);
                finish();
              }),
              AnyOf(HasSubstr("of others after"), HasSubstr("issued by 127 of 128 threads")));
}

}  // namespace
}  // namespace vca::emu
