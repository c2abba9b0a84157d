// SPDX-License-Identifier: Apache-2.0
// Attention problems as text, for the benchmark and the tests alike. Header only: the library
// itself has no use for it. bench/problems.py reads the same form.
//
//   b1 hq40 hkv40 sq75600 skv75600 d128 bf16 [len111717] [nhd | fused]
//
//   len     only the first so many keys of every batch are attended to
//   memory  [B, H, S, D] without a word; nhd: [B, S, H, D]; fused: q, k and v are views of one
//           [B, S, 3, H, D] buffer
//
// Words stand in this order, one blank between them, numbers without leading zeros, so that equal
// problems have equal texts.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "vca/vca.h"

namespace vca::core {

enum class ProblemMemory { hnd, nhd, fused };

struct ProblemText {
  int64_t b = 1, h_q = 1, h_kv = 1, s_q = 0, s_kv = 0;
  int32_t d = 64;
  int32_t dtype = VCA_BF16;       // vca_dtype
  std::optional<int64_t> kv_len;  // of every batch
  ProblemMemory memory = ProblemMemory::hnd;

  // Keys attended to, of each batch.
  int64_t keys() const { return kv_len.value_or(s_kv); }
  // Two matrix products over those keys, two operations for each multiply-add. A double, because
  // the sizes that can be written do not fit 64 bits; exact below 2^53.
  double flops() const {
    return 4.0 * static_cast<double>(b) * static_cast<double>(h_q) * static_cast<double>(s_q) *
           static_cast<double>(keys()) * d;
  }
  bool operator==(const ProblemText&) const = default;
};

// A text that is no problem. what() holds the three parts in one line.
class ProblemTextError : public std::invalid_argument {
 public:
  ProblemTextError(const std::string& wrong_, const std::string& got_, const std::string& allowed_)
      : std::invalid_argument(wrong_ + "; got " + got_ + "; allowed: " + allowed_),
        wrong(wrong_),
        got(got_),
        allowed(allowed_) {}
  std::string wrong, got, allowed;
};

inline constexpr const char* kProblemForm =
    "b1 hq40 hkv40 sq75600 skv75600 d128 bf16 [len111717] [nhd | fused]";

namespace problem_text_detail {

inline constexpr std::array<const char*, 3> kDtypes = {"bf16", "fp16", "fp32"};  // by vca_dtype

inline std::string quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

inline int64_t number(std::string_view text, std::string_view word, int64_t low, int64_t high) {
  const auto refuse = [&]() -> ProblemTextError {
    return {std::string("\"") + std::string(word) + "\" of a problem", quoted(text),
            std::string(word) + "N with N in " + std::to_string(low) + ".." + std::to_string(high) +
                ", no leading zeros"};
  };
  if (text.substr(0, word.size()) != word) throw refuse();
  const std::string_view digits = text.substr(word.size());
  if (digits.empty() || digits.size() > 10 || (digits[0] == '0' && digits.size() > 1))
    throw refuse();
  int64_t value = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') throw refuse();
    value = value * 10 + (c - '0');
  }
  if (value < low || value > high) throw refuse();
  return value;
}

}  // namespace problem_text_detail

inline std::string to_text(const ProblemText& p) {
  std::string text = "b" + std::to_string(p.b) + " hq" + std::to_string(p.h_q) + " hkv" +
                     std::to_string(p.h_kv) + " sq" + std::to_string(p.s_q) + " skv" +
                     std::to_string(p.s_kv) + " d" + std::to_string(p.d) + " " +
                     problem_text_detail::kDtypes.at(static_cast<size_t>(p.dtype));
  if (p.kv_len) text += " len" + std::to_string(*p.kv_len);
  if (p.memory == ProblemMemory::nhd) text += " nhd";
  if (p.memory == ProblemMemory::fused) text += " fused";
  return text;
}

// ProblemTextError when the text is not exactly in the form above.
inline ProblemText parse_problem(std::string_view text) {
  using namespace problem_text_detail;
  std::vector<std::string_view> words;
  for (size_t at = 0;;) {
    const size_t end = text.find(' ', at);
    words.push_back(text.substr(at, end == std::string_view::npos ? end : end - at));
    if (end == std::string_view::npos) break;
    at = end + 1;
  }
  constexpr size_t kFixed = 7;
  if (words.size() < kFixed)
    throw ProblemTextError("a problem has words missing", quoted(text), kProblemForm);
  constexpr int64_t kMax = INT32_MAX;
  ProblemText p;
  p.b = number(words[0], "b", 1, kMax);
  p.h_q = number(words[1], "hq", 1, kMax);
  p.h_kv = number(words[2], "hkv", 1, kMax);
  p.s_q = number(words[3], "sq", 0, kMax);
  p.s_kv = number(words[4], "skv", 0, kMax);
  p.d = static_cast<int32_t>(number(words[5], "d", 1, 128));
  if (p.h_q % p.h_kv != 0)
    throw ProblemTextError("hq is no multiple of hkv", quoted(text),
                           "query heads that share key heads");
  p.dtype = -1;
  for (size_t i = 0; i < kDtypes.size(); ++i)
    if (words[6] == kDtypes[i]) p.dtype = static_cast<int32_t>(i);
  if (p.dtype < 0)
    throw ProblemTextError("type of a problem", quoted(words[6]), "bf16, fp16, fp32");
  size_t next = kFixed;
  if (next < words.size() && words[next].substr(0, 3) == "len")
    p.kv_len = number(words[next++], "len", 0, p.s_kv);
  if (next < words.size() && (words[next] == "nhd" || words[next] == "fused"))
    p.memory = words[next++] == "nhd" ? ProblemMemory::nhd : ProblemMemory::fused;
  if (next < words.size())
    throw ProblemTextError("a problem has a word that does not belong there", quoted(words[next]),
                           kProblemForm);
  if (p.memory == ProblemMemory::fused && (p.h_q != p.h_kv || p.s_q != p.s_kv))
    throw ProblemTextError("fused q, k and v differ in shape", quoted(text),
                           "hq = hkv and sq = skv");
  return p;
}

// ---- views ----

// Where q (0), k (1) and v (2) lie: in which buffer, at which element, with which strides.
struct ProblemView {
  int buffer = 0;
  int64_t offset = 0;               // elements
  std::array<int64_t, 4> shape{};   // B, H, S, D
  std::array<int64_t, 4> stride{};  // elements
};

inline ProblemView view_of(const ProblemText& p, int which) {
  const int64_t h = which == 0 ? p.h_q : p.h_kv, s = which == 0 ? p.s_q : p.s_kv, d = p.d;
  ProblemView view;
  view.shape = {p.b, h, s, d};
  switch (p.memory) {
    case ProblemMemory::hnd:
      view.buffer = which;
      view.stride = {h * s * d, s * d, d, 1};
      break;
    case ProblemMemory::nhd:
      view.buffer = which;
      view.stride = {s * h * d, d, h * d, 1};
      break;
    case ProblemMemory::fused:
      view.offset = which * h * d;
      view.stride = {s * 3 * h * d, d, 3 * h * d, 1};
      break;
  }
  return view;
}

// Elements of a buffer: 0, 1 and 2, or 0 alone when fused.
inline int64_t buffer_elements(const ProblemText& p, int buffer) {
  const ProblemView view = view_of(p, buffer);
  const int64_t n = view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3];
  return p.memory == ProblemMemory::fused ? 3 * n : n;
}

}  // namespace vca::core
