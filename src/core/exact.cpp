// SPDX-License-Identifier: Apache-2.0
#include "core/exact.hpp"

#include <cstring>

#include "core/checked.hpp"
#include "core/output.hpp"
#include "core/parallel.hpp"
#include "spec/attention.hpp"

namespace vca::core {
namespace {

int64_t copy_bytes(const spec::TensorView& v) {
  int64_t elems = 1;
  for (const int64_t n : v.shape) elems = checked_mul(elems, n, "workspace");
  return round_up(checked_mul(elems, spec::dtype_bytes(v.dtype), "workspace"), 64);
}

spec::TensorView contiguous(spec::TensorView v, const uint8_t* data) {
  v.data = data;
  v.stride = {v.shape[1] * v.shape[2] * v.shape[3], v.shape[2] * v.shape[3], v.shape[3], 1};
  return v;
}

void copy(const spec::TensorView& v, uint8_t* to, int threads) {
  const int64_t bytes = spec::dtype_bytes(v.dtype), row_bytes = v.shape[3] * bytes;
  parallel_for(v.shape[0] * v.shape[1], threads, [&](int64_t bh, int) {
    const int64_t b = bh / v.shape[1], h = bh % v.shape[1];
    for (int64_t s = 0; s < v.shape[2]; ++s) {
      const int64_t at = b * v.stride[0] + h * v.stride[1] + s * v.stride[2];
      std::memcpy(to + (bh * v.shape[2] + s) * row_bytes,
                  static_cast<const uint8_t*>(v.data) + at * bytes, static_cast<size_t>(row_bytes));
    }
  });
}

}  // namespace

int64_t exact_copy_bytes(const Request& request) {
  const spec::Problem& p = request.problem;
  return checked_add(copy_bytes(p.q), checked_add(copy_bytes(p.k), copy_bytes(p.v), "workspace"),
                     "workspace");
}

void exact_copy(const Request& request, uint8_t* body) {
  const spec::Problem& p = request.problem;
  for (const spec::TensorView* v : {&p.q, &p.k, &p.v}) {
    copy(*v, body, request.threads);
    body += copy_bytes(*v);
  }
}

spec::Problem exact_problem(const Request& request, const uint8_t* body) {
  spec::Problem p = request.problem;
  for (spec::TensorView* v : {&p.q, &p.k, &p.v}) {
    *v = contiguous(*v, body);
    body += copy_bytes(*v);
  }
  return p;
}

void exact_attend(const Request& request, const spec::Problem& p) {
  constexpr int64_t kRows = 16;  // rows of a task: enough to hide the loop's own cost
  for (const spec::SubProblem& sub : p.subs) {
    const int64_t pieces = (sub.q_len + kRows - 1) / kRows;
    parallel_for(p.h_q * pieces, request.threads, [&](int64_t task, int) {
      const int64_t h = task / pieces, first = task % pieces * kRows;
      double o[spec::kMaxHeadDim], lse = 0.0;
      float row[spec::kMaxHeadDim];
      for (int64_t i = first; i < sub.q_len && i < first + kRows; ++i) {
        const int64_t s = sub.q_begin + i;
        spec::exact_row(p, sub, h, s, o, &lse, nullptr);
        for (int c = 0; c < p.d; ++c) row[c] = static_cast<float>(o[c]);
        store_row(request.desc.o, sub.batch, h, s, row);
        if (request.lse())
          request.desc.lse[(sub.batch * p.h_q + h) * p.s_q + s] = static_cast<float>(lse);
      }
    });
  }
}

}  // namespace vca::core
