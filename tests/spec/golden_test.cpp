// SPDX-License-Identifier: Apache-2.0
// One fixed input through every recipe on the CPU and on Hopper, against committed bits: the
// numerics cannot change unnoticed. A wanted change comes with a new SPEC_VERSION and
//
//   VCA_UPDATE_GOLDEN=1 build/tests/spec_golden_test
//
// which rewrites tests/golden/spec_attention.txt. Everything comes from integer and explicit FP32
// arithmetic.
#include <gtest/gtest.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "spec/heads.hpp"

namespace vca {
namespace {

using namespace spec;

std::filesystem::path golden_file() {
  return std::filesystem::path(VCA_SOURCE_DIR) / "tests" / "golden" / "spec_attention.txt";
}

template <class T>
void append(std::string& out, const char* name, const std::vector<T>& values, int64_t rows) {
  const size_t per_row = values.size() / static_cast<size_t>(rows);
  for (size_t i = 0; i < values.size(); ++i) {
    char hex[16];
    if constexpr (sizeof(T) == 1)
      std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned>(values[i]));
    else
      std::snprintf(hex, sizeof hex, "%08x", std::bit_cast<uint32_t>(values[i]));
    if (i % per_row == 0) out += std::string(name) + " " + std::to_string(i / per_row) + " ";
    out += hex;
    if ((i + 1) % per_row == 0) out += "\n";
  }
}

std::string golden_text() {
  // Head dim 40 in 64, 150 keys in two blocks with a tail, gathered in another order.
  constexpr int64_t kRows = 2, kKeys = 150;
  test::Heads h({1, 1, 1, kRows, kKeys, 40}, 1);
  std::mt19937 g(20261129);
  const auto number = [&g] {  // multiples of 1/256, exact everywhere
    return bf16_round(static_cast<float>(static_cast<int>(g() % 2001) - 1000) / 256.0f);
  };
  for (float& x : h.q) x = number();
  for (size_t i = 0; i < h.k.size(); ++i)
    h.k[i] = bf16_round(number() + (i % 40 == 7 ? 5.0f : 0.0f));
  for (float& x : h.v) x = number();
  test::Order order(1);
  for (int64_t i = 0; i < kKeys; ++i) order[0].push_back(i * 37 % kKeys);

  std::string out = "vcattn golden, spec_version " + std::to_string(kSpecVersion) +
                    "; hex bits of each row: S, m, codes, r, O, l\n";
  for (const Recipe* r : test::running_recipes()) {
    h.use(*r);
    const test::Prepared prepared(h.p, h.p.subs[0], 0, &order);
    std::vector<int32_t> cpu_scores;
    for (const Target target : {Target::cpu, test::chip_of(*r)}) {
      const test::Traced t(h.p, prepared, target, 0, kRows);
      out += "recipe " + std::string(r->name) + " target " + std::string(to_string(target)) + "\n";
      if (t.s == cpu_scores)
        out += "S as cpu\n";
      else
        append(out, "S", t.s, kRows);
      if (target == Target::cpu) cpu_scores = t.s;
      append(out, "m", t.m, kRows);
      if (r->has_codes()) append(out, "codes", t.codes, kRows);
      append(out, "r", t.r, kRows);
      append(out, "O", t.o, kRows);
      append(out, "l", t.l, kRows);
    }
  }
  return out;
}

TEST(Golden, EveryRecipeGivesItsCommittedBits) {
  const std::string text = golden_text();
  if (std::getenv("VCA_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(golden_file(), std::ios::binary) << text;
    GTEST_SKIP() << "rewrote " << golden_file();
  }
  std::ifstream file(golden_file(), std::ios::binary);
  ASSERT_TRUE(file) << golden_file() << " is missing; see the top of this file";
  std::stringstream committed, fresh(text);
  committed << file.rdbuf();
  std::string a, b, section;
  int line = 0;
  while (std::getline(committed, a)) {
    ++line;
    ASSERT_TRUE(std::getline(fresh, b)) << "the committed file has more lines";
    if (a.starts_with("recipe")) section = a;
    ASSERT_EQ(a, b) << "line " << line << ", " << section;
  }
  EXPECT_FALSE(std::getline(fresh, b)) << "the committed file has fewer lines";
}

}  // namespace
}  // namespace vca
