// SPDX-License-Identifier: Apache-2.0
// The sm_90a attention kernel, its own source, on the emulator: O equals the specification under
// the sm90 chip model bit for bit, under every scheduler, with no rule of the instruction set
// broken.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "emu/launch.hpp"
#include "kernels/sm90/kernel.cuh"
// The test programs are one source each; this helper is shared with the device tests.
#include "kernels/packed_problem.cpp"

namespace vca::tests {
namespace {

using kernels::OutType;
using kernels::sm90::Config;
using kernels::sm90::Form;

struct AttentionCase {
  const char* name;
  const char* recipe;
  ProblemShape shape;
  OutType type = OutType::fp32;
  uint32_t grid = 1;
  int schedules = 1;  // per policy
};

std::ostream& operator<<(std::ostream& out, const AttentionCase& c) { return out << c.name; }

ProblemShape shape_of(int64_t s_q, int64_t s_kv, int d = 128, double logit_std = 2.0) {
  ProblemShape shape;
  shape.s_q = s_q;
  shape.s_kv = s_kv;
  shape.d = d;
  shape.logit_std = logit_std;
  return shape;
}

ProblemShape grouped_heads() {
  ProblemShape shape = shape_of(200, 300);
  shape.h_q = 4;
  shape.h_kv = 2;
  return shape;
}

ProblemShape ragged_batch() {
  ProblemShape shape = shape_of(130, 700, 64);
  shape.b = 3;
  shape.kv_lens = {700, 0, 385};
  return shape;
}

const std::vector<AttentionCase>& cases() {
  static const std::vector<AttentionCase> table = {
      {"vc8_d128", "vc8", shape_of(128, 640), OutType::fp32, 1, 2},
      {"turbo_d128", "vc8-turbo", shape_of(128, 640), OutType::fp32, 1, 2},
      {"paper_d128", "vc8-paper", shape_of(128, 300)},
      // More than one group of 8 blocks, the second a tail.
      {"vc8_two_groups", "vc8", shape_of(64, 1300)},
      {"turbo_two_groups", "vc8-turbo", shape_of(64, 1300)},
      // Peaked rows: maxima move by more than a factor's range.
      {"vc8_peaked", "vc8", shape_of(128, 520, 128, 40.0)},
      {"turbo_peaked", "vc8-turbo", shape_of(128, 520, 128, 40.0)},
      {"vc8_d64", "vc8", shape_of(128, 300, 64)},
      {"turbo_d64", "vc8-turbo", shape_of(128, 300, 64)},
      {"vc8_d80", "vc8", shape_of(100, 300, 80)},
      {"turbo_d72_bf16", "vc8-turbo", shape_of(100, 140, 72), OutType::bf16},
      {"vc8_fp16", "vc8", shape_of(65, 127), OutType::fp16},
      {"one_key", "vc8", shape_of(1, 1)},
      {"one_key_turbo", "vc8-turbo", shape_of(1, 1)},
      {"one_block_exactly", "vc8", shape_of(129, 128)},
      {"several_tiles_a_cta", "vc8", grouped_heads(), OutType::fp32, 3},
      {"several_tiles_a_cta_turbo", "vc8-turbo", grouped_heads(), OutType::fp32, 3},
      {"ragged", "vc8", ragged_batch(), OutType::fp32, 2},
      {"ragged_turbo", "vc8-turbo", ragged_batch(), OutType::fp32, 2},
  };
  return table;
}

template <int kD, Form kForm>
void launch(emu::LaunchConfig config, const kernels::AttentionParams& params) {
  constexpr Config kConfig{kD, kForm};
  config.threads = Config::kThreads;
  config.smem_bytes = kConfig.smem_bytes();
  emu::launch(config, [&params] { kernels::sm90::attention_body<kConfig>(params); });
}

void launch(const emu::LaunchConfig& config, const PackedProblem& p,
            const kernels::AttentionParams& params) {
  const bool local = p.problem.recipe->name == std::string_view("vc8");
  if (p.problem.d_pad == 128) {
    local ? launch<128, Form::local>(config, params) : launch<128, Form::running>(config, params);
  } else {
    local ? launch<64, Form::local>(config, params) : launch<64, Form::running>(config, params);
  }
}

// Output elements as bits, row-major [b][h][s][d]; `written` is false for rows without keys, which
// another kernel fills.
struct Expected {
  std::vector<uint32_t> bits;
  std::vector<bool> written;
};

uint32_t out_bits(float x, OutType type) {
  if (type == OutType::bf16) return spec::bf16_encode(x);
  if (type == OutType::fp16) return spec::fp16_encode(x);
  return spec::float_bits(x);
}

Expected expected_of(const PackedProblem& packed, OutType type) {
  const spec::Problem& p = packed.problem;
  const size_t rows = static_cast<size_t>(p.batches * p.h_q * p.s_q);
  Expected out{std::vector<uint32_t>(rows * static_cast<size_t>(p.d)), std::vector<bool>(rows)};
  std::vector<float> o(static_cast<size_t>(p.s_q * p.d));
  for (size_t i = 0; i < p.subs.size(); ++i) {
    if (p.subs[i].n_blocks() == 0) continue;
    for (int64_t h = 0; h < p.h_q; ++h) {
      spec::RowOutputs part;
      part.o = o.data();
      const size_t kv = i * static_cast<size_t>(p.h_kv) + static_cast<size_t>(p.kv_head(h));
      const size_t q = i * static_cast<size_t>(p.h_q) + static_cast<size_t>(h);
      spec::attention_rows(p, packed.kv[kv]->view, packed.q[q]->view, spec::Target::sm90, 0, p.s_q,
                           nullptr, part);
      const size_t row0 = static_cast<size_t>((p.subs[i].batch * p.h_q + h) * p.s_q);
      for (size_t r = 0; r < static_cast<size_t>(p.s_q); ++r) {
        out.written[row0 + r] = true;
        for (size_t c = 0; c < static_cast<size_t>(p.d); ++c) {
          const size_t d = static_cast<size_t>(p.d);
          out.bits[(row0 + r) * d + c] = out_bits(o[r * d + c], type);
        }
      }
    }
  }
  return out;
}

class AttentionSm90 : public testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionSm90, EqualsTheSpecification) {
  const AttentionCase& c = GetParam();
  PackedProblem p;
  make_problem(c.shape, *spec::find_recipe(c.recipe), 1, p);
  const Expected want = expected_of(p, c.type);
  const size_t element_bytes = c.type == OutType::fp32 ? 4 : 2;
  constexpr uint8_t kPoison = 0xA5;  // every element of a written row must be written
  std::vector<uint8_t> o(want.bits.size() * element_bytes);
  std::vector<float> lse(want.written.size());

  emu::LaunchConfig config;
  config.grid = c.grid;
  config.readable = {{p.q_tiles.data, p.q_tiles.size},
                     {p.k_tiles.data, p.k_tiles.size},
                     {p.v_tiles.data, p.v_tiles.size},
                     {p.mu_tiles.data, p.mu_tiles.size},
                     {p.k_scale.data(), p.k_scale.size() * sizeof(float)}};
  for (const emu::Policy policy : emu::kAllPolicies) {
    for (int seed = 1; seed <= c.schedules; ++seed) {
      SCOPED_TRACE(std::string(to_string(policy)) + ", seed " + std::to_string(seed));
      std::fill(o.begin(), o.end(), kPoison);
      config.policy = policy;
      config.seed = static_cast<uint64_t>(seed);
      try {
        launch(config, p, p.params(o.data(), lse.data(), c.type));
      } catch (const emu::Fault& fault) {
        FAIL() << fault.what();
      }
      const size_t d = static_cast<size_t>(p.problem.d);
      for (size_t i = 0; i < want.bits.size(); ++i) {
        uint32_t got = 0;
        std::memcpy(&got, &o[i * element_bytes], element_bytes);
        uint32_t expected = want.bits[i];
        if (!want.written[i / d]) std::memset(&expected, kPoison, element_bytes);
        ASSERT_EQ(got, expected) << "row " << i / d << ", column " << i % d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Emulator, AttentionSm90, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace vca::tests
