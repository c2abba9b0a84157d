// SPDX-License-Identifier: Apache-2.0
// One calibrated head as an attention problem, its FP64 reference, its groupings and the diagnosis
// of any recipe on it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "accuracy/calibrated.hpp"
#include "spec/diagnose.hpp"
#include "spec/grouping/grouping.hpp"
#include "spec/heads.hpp"

namespace vca::test {

class CalibratedHead {
 public:
  CalibratedHead(Family family, const Grid& grid, double n_eff, uint64_t seed, int64_t rows)
      : CalibratedHead(make_calibrated(family, grid, n_eff, seed), rows) {}
  // Any head of kHeadDim channels, a captured one for instance.
  CalibratedHead(CalibratedTensors given, int64_t rows) : tensors(std::move(given)) {
    p.batches = p.h_q = p.h_kv = 1;
    p.s_q = p.s_kv = tensors.n;
    p.d = p.d_pad = kHeadDim;
    p.scale = 1.0 / std::sqrt(static_cast<double>(kHeadDim));
    p.q = view_of(tensors.q, 1, 1, tensors.n, kHeadDim);
    p.k = view_of(tensors.k, 1, 1, tensors.n, kHeadDim);
    p.v = view_of(tensors.v, 1, 1, tensors.n, kHeadDim);
    p.grid = tensors.grid;
    p.subs.push_back(Heads::whole(0, tensors.n, tensors.n));
    values = spec::value_rows(p, sub(), 0);
    const std::vector<int64_t> sampled = spec::evenly_spread(tensors.n, rows);
    exact.rows = sampled;
    exact = spec::exact_rows(p, sub(), 0, sampled);
  }
  CalibratedHead(const CalibratedHead&) = delete;  // the problem's views point into the tensors
  CalibratedHead& operator=(const CalibratedHead&) = delete;

  const spec::SubProblem& sub() const { return p.subs[0]; }

  const Order& order(spec::Grouping kind) {
    const auto found = orders_.find(kind);
    if (found != orders_.end()) return found->second;
    if (kind == spec::Grouping::identity) return orders_[kind] = sub().segments;
    spec::GroupingInput input;
    input.n_tokens = tensors.n;
    input.head_dim = kHeadDim;
    input.row = [this](int64_t token, float* out) {
      std::copy_n(tensors.v.begin() + token * kHeadDim, kHeadDim, out);
    };
    input.valid_by_segment = sub().segments;
    input.grid = tensors.grid;
    spec::GroupingParams params;
    params.kind = kind;
    return orders_[kind] = spec::group_head(input, params, nullptr).order_by_segment;
  }
  // The orders depend on V alone: heads of one family and seed may share them.
  void share_orders(CalibratedHead& other) const { other.orders_ = orders_; }

  // Prepares the head for a recipe; `p.recipe` points to `r` afterwards.
  void use(const spec::Recipe& r) {
    p.recipe = &r;
    p.hadamard = r.hadamard;
    const Order& by_segment = order(r.grouping);
    spec::allocate(r, tensors.n, sub().n_blocks(), kHeadDim, kv);
    spec::prepare_kv(p, sub(), 0, by_segment, kv.view);
    spec::OwnedQ all;
    spec::allocate(r, tensors.n, kHeadDim, false, all);
    spec::prepare_q(p, sub(), 0, kv.view.k_offset, all.view);
    spec::sample_queries(p, all.view, exact.rows, q);
  }

  std::vector<spec::RowDiagnosis> diagnose(spec::Target target) const {
    std::vector<spec::RowDiagnosis> out(exact.rows.size());
    const auto rows = static_cast<int64_t>(out.size());
#pragma omp parallel for schedule(dynamic)
    for (int64_t c0 = 0; c0 < rows; c0 += 8) {
      const int64_t n = std::min<int64_t>(8, rows - c0);
      spec::RowTraces traces(p, kv.view, n);
      spec::attention_rows(p, kv.view, q.view, target, spec::sample_slot(c0), n, nullptr,
                           traces.outputs());
      for (int64_t i = 0; i < n; ++i)
        out[static_cast<size_t>(c0 + i)] =
            spec::diagnose_row(p, kv.view, q.view, spec::sample_slot(c0 + i), traces, i, exact,
                               c0 + i, values.data(), nullptr, nullptr);
    }
    return out;
  }

  // rel_l2 of the first `rows` sampled rows, without the diagnosis.
  double relative_error(spec::Target target, int64_t rows) const {
    std::vector<float> o(static_cast<size_t>(rows * kHeadDim));
#pragma omp parallel for schedule(dynamic)
    for (int64_t c0 = 0; c0 < rows; c0 += 8) {
      spec::RowOutputs out;
      out.o = o.data() + c0 * kHeadDim;
      spec::attention_rows(p, kv.view, q.view, target, spec::sample_slot(c0),
                           std::min<int64_t>(8, rows - c0), nullptr, out);
    }
    return relative_l2(o, std::vector<double>(exact.o.begin(), exact.o.begin() + rows * kHeadDim));
  }

  CalibratedTensors tensors;
  spec::Problem p;
  std::vector<float> values;
  spec::ExactRows exact;
  spec::OwnedKv kv;
  spec::OwnedQ q;

 private:
  std::map<spec::Grouping, Order> orders_;
};

}  // namespace vca::test
