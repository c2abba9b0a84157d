// SPDX-License-Identifier: Apache-2.0
#include "core/ref.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/checked.hpp"
#include "core/execute.hpp"
#include "core/names.hpp"
#include "core/parallel.hpp"
#include "core/status.hpp"
#include "core/structs.hpp"
#include "spec/attention.hpp"
#include "spec/mma_fp4.hpp"

namespace vca::core {
namespace {

using Order = std::vector<std::vector<int64_t>>;

const spec::SubProblem& find_sub(const spec::Problem& p, int64_t b, int64_t row0, int64_t nrows,
                                 int64_t* index) {
  for (size_t i = 0; i < p.subs.size(); ++i) {
    const spec::SubProblem& sub = p.subs[i];
    if (sub.batch != b || row0 < sub.q_begin || row0 >= sub.q_begin + sub.q_len) continue;
    if (row0 + nrows > sub.q_begin + sub.q_len) {
      invalid("the rows cross the border of a sequence",
              "[" + to_text(row0) + ", " + to_text(row0 + nrows) + ")",
              "rows of [" + to_text(sub.q_begin) + ", " + to_text(sub.q_begin + sub.q_len) + ")",
              "ask for one sequence at a time");
    }
    *index = static_cast<int64_t>(i);
    return sub;
  }
  invalid("no sequence holds these rows", to_text(row0), "", "check the segments");
}

Order given_order(const spec::SubProblem& sub, const int64_t* permutation) {
  Order order;
  for (size_t s = 0; s < sub.segments.size(); ++s) {
    const auto& valid = sub.segments[s];
    std::vector<int64_t> mine(permutation, permutation + valid.size());
    std::vector<int64_t> sorted = mine;
    std::sort(sorted.begin(), sorted.end());
    if (sorted != valid) {
      invalid("permutation is no bijection of the valid tokens of segment " + std::to_string(s),
              "a missing, repeated, masked or foreign token",
              "every valid token of the segment exactly once, segments one after the other",
              "NULL uses the recipe's grouping");
    }
    order.push_back(std::move(mine));
    permutation += valid.size();
  }
  return order;
}

void check_rows(const spec::Problem& p, int64_t b, int64_t h, int64_t row0, int64_t nrows) {
  const auto range = [](const char* name, int64_t got, int64_t end) {
    if (got >= 0 && got < end) return;
    invalid(std::string(name) + " is out of range", to_text(got), "0 .. " + to_text(end - 1), "");
  };
  range("b", b, p.batches);
  range("h", h, p.h_q);
  if (nrows < 0 || row0 < 0 || checked_add(row0, nrows, "row0 + nrows") > p.s_q) {
    invalid("rows are out of range", "[" + to_text(row0) + ", +" + to_text(nrows) + ")",
            "inside [0, S_q = " + to_text(p.s_q) + ")", "");
  }
}

void check_target(const spec::Recipe& r, spec::Target target) {
  if (!r.four_bit() || spec::has_nvfp4(target)) return;
  fail(VCA_ERR_UNSUPPORTED, {"recipe `" + std::string(r.name) + "` needs NVFP4 matrix instructions",
                             "target " + std::string(spec::to_string(target)) + ", which has none",
                             "cpu, sm100, sm103, sm120", ""});
}

void check_outputs(const spec::Recipe& r, const vca_ref_io& io) {
  const bool codes = io.codes != nullptr || io.codes_in != nullptr;
  // NVFP4 codes are elements under micro-scales; these arrays hold one byte a key.
  if ((codes && !r.has_codes()) ||
      (r.id == spec::RecipeId::exact && (io.s != nullptr || io.m != nullptr || io.r != nullptr))) {
    invalid("recipe `" + std::string(r.name) + "` has no such intermediate value",
            codes ? "codes or codes_in" : "s, m or r",
            r.id == spec::RecipeId::exact ? "o, lse, o_exact and order" : "all but codes", "");
  }
  if (io.sums_in != nullptr && io.codes_in == nullptr) {
    invalid("sums_in without codes_in", "sums only", "both, or codes_in alone", "");
  }
}

// Copies rows of `width` elements into rows of `pitch`, the rest of each row set to `fill`.
template <class T>
void spread(const std::vector<T>& from, int64_t rows, int64_t width, int64_t pitch, T fill, T* to) {
  if (to == nullptr) return;
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(from.begin() + i * width, width, to + i * pitch);
    std::fill(to + i * pitch + width, to + (i + 1) * pitch, fill);
  }
}

template <class T>
std::vector<T> gather(const T* from, int64_t rows, int64_t width, int64_t pitch) {
  std::vector<T> to(static_cast<size_t>(rows * width));
  for (int64_t i = 0; i < rows; ++i) std::copy_n(from + i * pitch, width, to.begin() + i * width);
  return to;
}

// One head's operands and the buffers of its rows.
class RefHead {
 public:
  RefHead(const Request& request, spec::Target target, const spec::SubProblem& sub, int64_t h,
          const Order& order, bool lse)
      : p_(request.problem), target_(target), threads_(request.threads) {
    const spec::Recipe& r = *p_.recipe;
    spec::allocate(r, sub.n_valid(), sub.n_blocks(), p_.d_pad, kv_);
    spec::prepare_kv(p_, sub, p_.kv_head(h), order, kv_.view);
    spec::allocate(r, sub.q_len, p_.d_pad, lse, q_);
    spec::prepare_q(p_, sub, h, kv_.view.k_offset, q_.view);
    spec::bind_mask(p_, sub, h, q_.view);
  }
  const spec::KvOperands& kv() const { return kv_.view; }

  void rows(int64_t row0, int64_t nrows, const vca_ref_io& io, int64_t n_blocks) const {
    const int64_t cols = kv_.view.n_cols(), blocks = kv_.view.n_blocks;
    const int64_t col_pitch = n_blocks * spec::kBlock;
    std::vector<uint8_t> codes_in;
    std::vector<float> sums_in;
    if (io.codes_in != nullptr) codes_in = gather(io.codes_in, nrows, cols, col_pitch);
    if (io.sums_in != nullptr) sums_in = gather(io.sums_in, nrows, blocks, n_blocks);
    const auto size = [&](const void* wanted, int64_t width) {
      return static_cast<size_t>(wanted != nullptr ? nrows * width : 0);
    };
    std::vector<int32_t> s(size(io.s, cols));
    std::vector<uint8_t> codes(size(io.codes, cols));
    std::vector<float> m(size(io.m, blocks)), sums(size(io.r, blocks));
    // A few rows a task: each loads every block of keys again.
    constexpr int64_t kRows = 8;
    parallel_for((nrows + kRows - 1) / kRows, threads_, [&](int64_t task, int) {
      const int64_t i = task * kRows, n = std::min(kRows, nrows - i);
      spec::RowOutputs out;
      if (io.s != nullptr) out.s = s.data() + i * cols;
      if (io.codes != nullptr) out.codes = codes.data() + i * cols;
      if (io.m != nullptr) out.m = m.data() + i * blocks;
      if (io.r != nullptr) out.r = sums.data() + i * blocks;
      if (io.o != nullptr) out.o = io.o + i * p_.d;
      if (io.lse != nullptr) out.lse = io.lse + i;
      spec::Injected injected;
      if (!codes_in.empty()) injected.codes = codes_in.data() + i * cols;
      if (!sums_in.empty()) injected.sums = sums_in.data() + i * blocks;
      spec::attention_rows(p_, kv_.view, q_.view, target_, row0 + i, n,
                           injected.codes != nullptr ? &injected : nullptr, out);
    });
    spread<int32_t>(s, nrows, cols, col_pitch, 0, io.s);
    spread<uint8_t>(codes, nrows, cols, col_pitch, 0, io.codes);
    spread<float>(m, nrows, blocks, n_blocks, 0.0f, io.m);
    spread<float>(sums, nrows, blocks, n_blocks, 0.0f, io.r);
  }

 private:
  const spec::Problem& p_;
  spec::Target target_;
  int threads_;
  spec::OwnedKv kv_;
  spec::OwnedQ q_;
};

void exact_rows(const Request& request, const spec::SubProblem& sub, int64_t h, int64_t row0,
                int64_t nrows, const vca_ref_io& io, bool fill_o) {
  const spec::Problem& p = request.problem;
  parallel_for(nrows, request.threads, [&](int64_t i, int) {
    double o[spec::kMaxHeadDim], lse = 0.0;
    spec::exact_row(p, sub, h, row0 + i, o, &lse, nullptr);
    if (io.o_exact != nullptr) std::copy_n(o, p.d, io.o_exact + i * p.d);
    if (!fill_o) return;
    if (io.o != nullptr)
      for (int c = 0; c < p.d; ++c) io.o[i * p.d + c] = static_cast<float>(o[c]);
    if (io.lse != nullptr) io.lse[i] = static_cast<float>(lse);
  });
}

void write_order(const Order& order, int64_t n_cols, int64_t* out) {
  int64_t at = 0;
  for (const auto& segment : order) {
    for (const int64_t token : segment) out[at++] = token;
    while (at % spec::kBlock != 0) out[at++] = -1;
  }
  std::fill(out + at, out + n_cols, int64_t{-1});
}

}  // namespace

BlockCounts ref_blocks(const Request& request, int64_t b) {
  const spec::Problem& p = request.problem;
  if (b < 0 || b >= p.batches) {
    invalid("b is out of range", to_text(b), "0 .. " + to_text(p.batches - 1), "");
  }
  BlockCounts counts;
  for (size_t i = 0; i < p.subs.size(); ++i) {
    if (p.subs[i].batch != b) continue;
    counts.n_valid = std::max(counts.n_valid, request.key_counts[i].valid);
    counts.n_blocks = std::max(counts.n_blocks, request.key_counts[i].blocks);
  }
  return counts;
}

void ref_attn(const Request& request, int32_t target, int64_t b, int64_t h, int64_t row0,
              int64_t nrows, const vca_ref_io* caller) {
  const vca_ref_io io = read_struct(caller, sizeof(vca_ref_io), "vca_ref_io");
  const spec::Problem& p = request.problem;
  const spec::Target chip = resolve_target(target);
  check_rows(p, b, h, row0, nrows);
  check_target(*p.recipe, chip);
  check_outputs(*p.recipe, io);
  if (nrows == 0) return;
  int64_t index = 0;
  const spec::SubProblem& sub = find_sub(p, b, row0, nrows, &index);
  const int64_t n_blocks = ref_blocks(request, b).n_blocks;
  const bool exact = request.exact();
  const bool grouped =
      !exact && (io.order != nullptr || io.s != nullptr || io.m != nullptr || io.codes != nullptr ||
                 io.r != nullptr || io.o != nullptr || io.lse != nullptr);
  Order order = sub.segments;
  if (io.permutation != nullptr) {
    order = given_order(sub, io.permutation);
  } else if (grouped) {
    order = order_unit(request, index * p.h_kv + p.kv_head(h), nullptr).by_segment;
  }
  if (io.order != nullptr) write_order(order, n_blocks * spec::kBlock, io.order);
  if (grouped) {
    const RefHead head(request, chip, sub, h, order, io.lse != nullptr);
    head.rows(row0 - sub.q_begin, nrows, io, n_blocks);
  }
  if (exact || io.o_exact != nullptr) exact_rows(request, sub, h, row0, nrows, io, exact);
}

}  // namespace vca::core
