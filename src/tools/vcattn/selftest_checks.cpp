// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "core/hash.hpp"
#include "cpu/backend.hpp"
#include "spec/arith.hpp"
#include "spec/attention.hpp"
#include "spec/codes.hpp"
#include "spec/grouping/grouping.hpp"
#include "spec/operands.hpp"
#include "tools/vcattn/selftest.hpp"
#include "vca/vca.h"

namespace vca::tools {

// Printed by a failing run; changed only together with the version of the specification.
const SelftestGoldens kSelftestGoldens = {
    .e4m3 = 0x60080c10054fd725u,
    .int8 = 0x6399a91f7d89ec1bu,
    .bf16 = 0x1a8d7e9158c3d715u,
    .fp16 = 0x4cf79fb465644b55u,
    .ue8m0 = 0x41f867fdc0aafc25u,
    .pow2 = 0xa1ec3296b2ca1eb0u,
    .kdtree = 0x18c59121e427f51du,
    .vsmooth = 0x5a666fc76a918535u,
    .kmeans = 0xd15ae36bfe8641adu,
};

namespace {

std::string hex(uint64_t x) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(x));
  return text;
}

std::string compare_hash(uint64_t got, uint64_t expected) {
  return got == expected ? "" : "hash " + hex(got) + ", expected " + hex(expected);
}

// Counter-based, no library function: the same numbers everywhere.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Sum of four uniforms in (-2, 2), exact in FP32.
float noise(uint64_t index) {
  const uint64_t bits = mix(index);
  int64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>((bits >> (16 * i)) & 0xFFFFu) - 32768;
  return static_cast<float>(sum) * 0x1p-16f;
}

// ---- formats ----

// Every upper half of an FP32 with four lower halves: all exponents, ties and their neighbours.
template <class Encode>
uint64_t hash_encoder(Encode encode) {
  core::Hash hash;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x8000u, 0xFFFFu}) {
      const auto code = encode(spec::float_from_bits(high << 16 | low));
      hash.add_bytes(&code, sizeof code);
    }
  }
  return hash.value();
}

void check_formats(const SelftestGoldens& g, const SelftestReport& report) {
  report("E4M3 encoder", compare_hash(hash_encoder(spec::e4m3_encode), g.e4m3), "262,144 values");
  report("INT8 encoder", compare_hash(hash_encoder(spec::int8_encode), g.int8), "262,144 values");
  report("BF16 encoder", compare_hash(hash_encoder(spec::bf16_encode), g.bf16), "262,144 values");
  report("FP16 encoder", compare_hash(hash_encoder(spec::fp16_encode), g.fp16), "262,144 values");
  report("UE8M0 encoder", compare_hash(hash_encoder(spec::ue8m0_encode_rn), g.ue8m0),
         "262,144 values");
  core::Hash powers;
  for (int k = 0; k <= 16200; ++k)
    powers.add(spec::float_bits(spec::pow2_code(static_cast<float>(-k) * 0.0625f)));
  report("powers of two", compare_hash(powers.value(), g.pow2), "16,201 rescale factors");
  std::string error;
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7Fu) == 0x7Fu) continue;
    const auto byte = static_cast<uint8_t>(code);
    if (spec::e4m3_encode(spec::e4m3_decode(byte)) != byte)
      error = "code " + std::to_string(code) + " does not survive decode and encode";
  }
  report("E4M3 round trip", error, "254 codes");
}

// ---- ExpCast ----

// Largest relative error of a decoded code against 2^(u / 8) * peak over the codes of normal
// numbers, u in steps of 1/1024 code from the maximum down.
double worst_element_error(double top, double peak) {
  double worst = 0;
  for (int i = 0;; ++i) {
    const double u = -i / 1024.0;
    const uint8_t code = spec::f2ip_code(static_cast<float>(u + top));
    if (code < 8) return worst;
    const double exact = peak * std::exp2(u / 8);
    worst = std::max(worst, std::fabs(static_cast<double>(spec::e4m3_decode(code)) / exact - 1));
  }
}

// The published constants to their last printed digit.
void check_expcast(const SelftestReport& report) {
  const auto check = [&](const char* name, double got, double expected) {
    char text[80];
    std::snprintf(text, sizeof text, "%.4f %%, expected %.2f %%", 100 * got, 100 * expected);
    report(name, std::fabs(got - expected) < 0.00005 ? "" : text, text);
  };
  check("ExpCast, top 126: largest element error", worst_element_error(126, 448), 0.0797);
  check("ExpCast, beta -0.35: largest element error", worst_element_error(119.65, 256), 0.0745);
}

// ---- grouping ----

std::vector<std::vector<int64_t>> all_tokens(int64_t n) {
  std::vector<std::vector<int64_t>> segments(1, std::vector<int64_t>(static_cast<size_t>(n)));
  std::iota(segments[0].begin(), segments[0].end(), int64_t{0});
  return segments;
}

// 24 clusters and noise; the tail block is not full.
uint64_t hash_grouping(spec::Grouping kind) {
  constexpr int64_t kTokens = 1500;
  constexpr int kDim = 64;
  spec::GroupingInput input;
  input.n_tokens = kTokens;
  input.head_dim = kDim;
  input.row = [](int64_t token, float* out) {
    const uint64_t cluster = mix(static_cast<uint64_t>(token)) % 24;
    for (uint64_t i = 0; i < kDim; ++i)
      out[i] = noise(1'000'000 + cluster * kDim + i) +
               0.5f * noise(2'000'000 + static_cast<uint64_t>(token) * kDim + i);
  };
  input.valid_by_segment = all_tokens(kTokens);
  input.segments = {{0, kTokens, 0}};
  spec::GroupingParams params;
  params.kind = kind;
  const spec::GroupingResult result = spec::group_head(input, params, nullptr);
  core::Hash hash;
  for (int64_t token : result.order_by_segment[0]) hash.add(token);
  return hash.value();
}

void check_grouping(const SelftestGoldens& g, const SelftestReport& report) {
  const std::pair<spec::Grouping, uint64_t> kinds[] = {{spec::Grouping::kdtree, g.kdtree},
                                                       {spec::Grouping::vsmooth, g.vsmooth},
                                                       {spec::Grouping::kmeans, g.kmeans}};
  for (const auto& [kind, expected] : kinds)
    report(std::string("grouping ") + spec::to_string(kind),
           compare_hash(hash_grouping(kind), expected), "order of 1,500 tokens");
}

// ---- attention ----

// One batch, two query heads on one key head, a tail block, an offset in K and channels of unequal
// size.
struct SmallProblem {
  static constexpr int64_t kQueries = 40, kKeys = 301, kHeads = 2;
  static constexpr int kDim = 72;
  std::vector<float> q, k, v;
  spec::Problem problem;

  explicit SmallProblem(const spec::Recipe& recipe)
      : q(static_cast<size_t>(kHeads * kQueries * kDim)),
        k(static_cast<size_t>(kKeys * kDim)),
        v(k.size()) {
    for (size_t i = 0; i < q.size(); ++i) q[i] = 3 * noise(3'000'000 + i);
    for (size_t i = 0; i < k.size(); ++i) {
      const auto channel = static_cast<float>(i % kDim);
      k[i] = noise(4'000'000 + i) + (channel - 30) * 0.05f;
      v[i] = noise(5'000'000 + i) * (1 + channel * 0.02f) + noise(i / kDim % 7 * kDim + i % kDim);
    }
    problem.set_tensors(view(q, kHeads, kQueries), view(k, 1, kKeys), view(v, 1, kKeys));
    problem.recipe = &recipe;
    problem.hadamard = recipe.hadamard;
    problem.grouping = recipe.grouping;
    spec::SubProblem sub;
    sub.q_len = kQueries;
    sub.segments = all_tokens(kKeys);
    sub.segment_info = {{0, kKeys, 0}};
    problem.subs.push_back(std::move(sub));
  }
  SmallProblem(const SmallProblem&) = delete;
  SmallProblem& operator=(const SmallProblem&) = delete;

  static spec::TensorView view(const std::vector<float>& data, int64_t heads, int64_t tokens) {
    spec::TensorView t;
    t.data = data.data();
    t.dtype = spec::DType::fp32;
    t.shape = {1, heads, tokens, kDim};
    t.stride = {heads * tokens * kDim, tokens * kDim, kDim, 1};
    return t;
  }
};

// Index and bits of the first difference, "" when there is none.
std::string first_difference(const float* got, const float* expected, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (spec::float_bits(got[i]) == spec::float_bits(expected[i])) continue;
    char text[96];
    std::snprintf(text, sizeof text, "element %lld is %.9g, the specification has %.9g",
                  static_cast<long long>(i), static_cast<double>(got[i]),
                  static_cast<double>(expected[i]));
    return text;
  }
  return "";
}

// The specification's output, [heads][queries][dim], and what it was made from.
struct SpecRun {
  spec::OwnedKv kv;
  std::vector<std::unique_ptr<spec::OwnedQ>> q;
  std::vector<float> o;

  explicit SpecRun(const SmallProblem& small) {
    const spec::Problem& p = small.problem;
    const spec::SubProblem& sub = p.subs[0];
    spec::GroupingInput input;
    input.n_tokens = p.s_kv;
    input.head_dim = p.d;
    input.row = [&](int64_t token, float* out) { p.v.load_row(0, 0, token, out); };
    input.valid_by_segment = sub.segments;
    input.segments = sub.segment_info;
    spec::GroupingParams params;
    params.kind = p.grouping;
    const spec::GroupingResult grouped = spec::group_head(input, params, nullptr);
    spec::allocate(*p.recipe, sub.n_valid(), sub.n_blocks(), p.d_pad, kv);
    spec::prepare_kv(p, sub, 0, grouped.order_by_segment, kv.view);
    o.resize(small.q.size());
    for (int64_t head = 0; head < p.h_q; ++head) {
      q.push_back(std::make_unique<spec::OwnedQ>());
      spec::allocate(*p.recipe, p.s_q, p.d_pad, false, *q.back());
      spec::prepare_q(p, sub, head, kv.view.k_offset, q.back()->view);
      spec::RowOutputs out;
      out.o = o.data() + head * p.s_q * p.d;
      spec::attention_rows(p, kv.view, q.back()->view, spec::Target::cpu, 0, p.s_q, nullptr, out);
    }
  }
};

std::string check_unit(cpu::Isa isa, const SmallProblem& small, const SpecRun& expected) {
  const spec::Problem& p = small.problem;
  const auto scratch = std::make_unique<cpu::Scratch>();
  const spec::KvOperands& kv = expected.kv.view;
  std::vector<float> delta(static_cast<size_t>(kv.n_cols()));
  for (int64_t head = 0; head < p.h_q; ++head) {
    const spec::QOperands& q = expected.q[static_cast<size_t>(head)]->view;
    for (int64_t j = 0; q.q_mean != nullptr && j < kv.n_blocks; ++j)
      spec::mean_scores(kv, q.q_mean, j, delta.data() + j * spec::kBlock);
    cpu::attend_tile(isa, p, kv, q, 0, static_cast<int>(p.s_q),
                     q.q_mean != nullptr ? delta.data() : nullptr, false, *scratch);
    const std::string error =
        first_difference(scratch->o, expected.o.data() + head * p.s_q * p.d, p.s_q * p.d);
    if (!error.empty()) return "head " + std::to_string(head) + ": " + error;
  }
  return "";
}

vca_tensor c_tensor(const spec::TensorView& view) {
  vca_tensor t = {};
  t.data = const_cast<void*>(view.data);
  t.dtype = static_cast<int32_t>(view.dtype);
  for (size_t i = 0; i < 4; ++i) {
    t.shape[i] = view.shape[i];
    t.stride[i] = view.stride[i];
  }
  return t;
}

// vca_attn_run, FP32 output, against `expected`.
std::string check_library(const SmallProblem& small, const std::vector<float>& expected) {
  const spec::Problem& p = small.problem;
  std::vector<float> output(small.q.size());
  vca_attn_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.q = c_tensor(p.q);
  desc.k = c_tensor(p.k);
  desc.v = c_tensor(p.v);
  desc.o = c_tensor(p.q);
  desc.o.data = output.data();
  desc.device = VCA_DEVICE_CPU;
  desc.recipe = static_cast<int32_t>(p.recipe->id);
  if (vca_attn_run(&desc, nullptr, 0, nullptr) != VCA_OK) return vca_last_error();
  return first_difference(output.data(), expected.data(), static_cast<int64_t>(output.size()));
}

std::vector<float> exact_output(const SmallProblem& small) {
  const spec::Problem& p = small.problem;
  std::vector<float> out(small.q.size());
  double row[spec::kMaxHeadDim];
  for (int64_t head = 0; head < p.h_q; ++head) {
    for (int64_t i = 0; i < p.s_q; ++i) {
      spec::exact_row(p, p.subs[0], head, i, row, nullptr, nullptr);
      for (int64_t c = 0; c < p.d; ++c)
        out[static_cast<size_t>((head * p.s_q + i) * p.d + c)] = static_cast<float>(row[c]);
    }
  }
  return out;
}

void check_attention(const SelftestReport& report) {
  for (const spec::Recipe& recipe : spec::kRecipes) {
    const SmallProblem small(recipe);
    const std::string name(recipe.name);
    if (recipe.id == spec::RecipeId::exact) {
      report(name + ": library", check_library(small, exact_output(small)), "bits of FP64 rows");
      continue;
    }
    const SpecRun expected(small);
    for (cpu::Isa isa : cpu::kIsas) {
      const std::string refusal = cpu::isa_refusal(isa);
      if (refusal.empty())
        report(name + ": " + cpu::isa_name(isa), check_unit(isa, small, expected),
               "bits of the specification");
    }
    report(name + ": library", check_library(small, expected.o), "bits of the specification");
  }
}

}  // namespace

int run_selftest(const SelftestGoldens& goldens, const SelftestReport& report) {
  int failed = 0;
  const SelftestReport counting = [&](const std::string& name, const std::string& error,
                                      const std::string& note) {
    if (!error.empty()) ++failed;
    report(name, error, note);
  };
  check_formats(goldens, counting);
  check_expcast(counting);
  check_grouping(goldens, counting);
  check_attention(counting);
  return failed;
}

}  // namespace vca::tools
