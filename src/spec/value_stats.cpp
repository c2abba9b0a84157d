// SPDX-License-Identifier: Apache-2.0
#include "spec/value_stats.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "spec/arith.hpp"
#include "spec/codes.hpp"
#include "spec/fp4.hpp"

namespace vca::spec {
namespace {

struct ChannelRange {
  float min = std::numeric_limits<float>::infinity();
  float max = -std::numeric_limits<float>::infinity();
  float abs_max() const { return std::max(std::fabs(min), std::fabs(max)); }
};

std::vector<ChannelRange> channel_ranges(const Problem& p, const SubProblem& sub, int64_t kv_head) {
  std::vector<ChannelRange> range(static_cast<size_t>(p.d));
  float row[kMaxHeadDim];
  for (const auto& segment : sub.segments)
    for (const int64_t token : segment) {
      p.v.load_row(sub.batch, kv_head, token, row);
      for (size_t i = 0; i < range.size(); ++i) {
        range[i].min = std::min(range[i].min, row[i]);
        range[i].max = std::max(range[i].max, row[i]);
      }
    }
  return range;
}

// s_v of V-Smooth: a residual can reach the whole spread (a block mean at one end, a value at the
// other), so (max - min)/448 never saturates; the last term makes room for the rounding of the
// stored mean. Proof: docs/numerics.md B7.
float smooth_scale(const ChannelRange& c) {
  if (c.abs_max() < 0x1p-100f) return 1.0f;
  constexpr float kInv448 = 1.0f / 448.0f;
  constexpr float kMeanSlack = 0x1p-8f / 448.0f;
  return add(sub(mul(c.max, kInv448), mul(c.min, kInv448)), mul(c.abs_max(), kMeanSlack));
}

// f = sum n_j |mu_j s_v|^2 / sum |V|^2, on values scaled by a power of two so that squares stay in
// range.
class EnergyMeter {
 public:
  explicit EnergyMeter(float abs_max)
      : factor_(abs_max > 0.0f ? static_cast<float>(std::ldexp(1.0, -std::ilogb(abs_max))) : 1.0f) {
  }
  void add_row(const float* v, int d) {
    rows_.push_back(tree_sum(d, [&](int64_t i) {
      const float x = mul(v[i], factor_);
      return mul(x, x);
    }));
  }
  void add_block(const float* mu, const float* s_v, int d, int64_t n) {
    const float sum = tree_sum(d, [&](int64_t i) {
      const float x = mul(mul(mu[i], s_v[i]), factor_);
      return mul(x, x);
    });
    blocks_.push_back(mul(sum, static_cast<float>(n)));
  }
  float removed() const {
    const float whole = tree_sum(rows_.data(), static_cast<int64_t>(rows_.size()));
    if (!(whole > 0.0f)) return std::numeric_limits<float>::quiet_NaN();
    return tree_sum(blocks_.data(), static_cast<int64_t>(blocks_.size())) / whole;
  }

 private:
  float factor_;
  std::vector<float> rows_, blocks_;
};

void store_plain_block(const Problem& p, const float* rows, int64_t n_valid, int64_t c0,
                       KvOperands& out, const std::vector<float>& factor) {
  const int d = p.d_pad;
  for (int64_t n = 0; n < kBlock; ++n) {
    for (int i = 0; i < d; ++i) {
      const float x = n < n_valid ? rows[n * d + i] : 0.0f;
      const int64_t at = (c0 + n) * d + i;
      if (p.recipe->v == VFormat::bf16) {
        out.v_real[at] = bf16_round(x);
      } else {
        out.v_codes[at] = e4m3_encode(mul(x, factor[static_cast<size_t>(i)]));
      }
    }
  }
}

void store_smooth_block(const Problem& p, const float* rows, int64_t n_valid, int64_t block,
                        KvOperands& out, const std::vector<float>& inverse) {
  const int d = p.d_pad;
  float* mu = out.mu + block * d;
  for (int i = 0; i < d; ++i) {
    const float mean = mul(tree_sum(rows + i, n_valid, d), rn_inverse(n_valid));
    mu[i] = bf16_round(mul(mean, inverse[static_cast<size_t>(i)]));
  }
  uint8_t* codes = out.v_codes + block * kBlock * d;
  const auto residual = [&](int64_t n, int i) {
    return fma_rn(rows[n * d + i], inverse[static_cast<size_t>(i)], -mu[i]);
  };
  for (int i = 0; i < d; ++i) {
    float factor = 1.0f;
    if (p.recipe->v == VFormat::int8_smooth) {
      float amax = 0.0f;
      for (int64_t n = 0; n < n_valid; ++n) amax = std::max(amax, std::fabs(residual(n, i)));
      if (amax < 0x1p-100f) amax = 0.0f;
      factor = amax > 0.0f ? 127.0f / amax : 0.0f;
      out.v_scale[block * d + i] = amax > 0.0f ? amax / 127.0f : 0.0f;
    }
    for (int64_t n = 0; n < kBlock; ++n) {
      uint8_t& code = codes[n * d + i];
      if (n >= n_valid) {
        code = 0;
      } else if (p.recipe->v == VFormat::int8_smooth) {
        code = static_cast<uint8_t>(int8_encode(mul(residual(n, i), factor)));
      } else {
        code = e4m3_encode(residual(n, i));
      }
    }
  }
}

// NVFP4 values of a block: 16 columns of a channel share a micro-scale. Pads and, in the last
// group, what stands beside valid columns are zeros.
void store_nvfp4_block(const Problem& p, const float* rows, int64_t n_valid, int64_t block,
                       float factor, KvOperands& out) {
  const int d = p.d_pad;
  float* mu = p.recipe->v_smooth() ? out.mu + block * d : nullptr;
  for (int i = 0; i < d; ++i) {
    if (mu != nullptr) {
      const float mean = mul(tree_sum(rows + i, n_valid, d), rn_inverse(n_valid));
      mu[i] = bf16_round(mul(mean, factor));
    }
    for (int64_t n0 = 0; n0 < kBlock; n0 += kMicroGroup) {
      float x[kMicroGroup] = {};
      for (int64_t n = n0; n < std::min<int64_t>(n0 + kMicroGroup, n_valid); ++n)
        x[n - n0] =
            mu != nullptr ? fma_rn(rows[n * d + i], factor, -mu[i]) : mul(rows[n * d + i], factor);
      const MicroGroup g = quantise_micro_group(x, p.recipe->micro_of_three);
      const int64_t column = block * kBlock + n0;
      out.v_micro[column / kMicroGroup * d + i] = g.scale;
      for (int k = 0; k < kMicroGroup; ++k)
        fp4_set(out.v_codes + (column + k) * d / 2, d, i, g.codes[k]);
    }
  }
}

// One scale for a head's NVFP4 values: 1/factor in s_v. With V-Smooth a residual can reach the
// whole spread of its channel, as in smooth_scale; the micro-scales take what differs between
// channels.
float nvfp4_value_scale(const Recipe& r, const std::vector<ChannelRange>& range) {
  float largest = 0.0f;
  for (const ChannelRange& c : range) {
    const float reach =
        r.v_smooth() ? add(sub(c.max, c.min), mul(c.abs_max(), 0x1p-8f)) : c.abs_max();
    largest = std::max(largest, reach);
  }
  return largest < 0x1p-100f ? 1.0f : largest / kNvfp4Max;
}

}  // namespace

void prepare_values(const Problem& p, const SubProblem& sub, int64_t kv_head, KvOperands& out) {
  const Recipe& r = *p.recipe;
  const int d = p.d_pad;
  out.stats->energy_removed = std::numeric_limits<float>::quiet_NaN();
  std::fill(out.s_v, out.s_v + d, 1.0f);
  if (out.n_blocks == 0) return;

  // Factor on V before encoding: RN(1/s_v) for V-Smooth, RN(448/amax) per channel otherwise.
  std::vector<float> factor(static_cast<size_t>(d), 0.0f);
  float abs_max = 0.0f;
  if (r.v != VFormat::bf16) {
    const std::vector<ChannelRange> range = channel_ranges(p, sub, kv_head);
    const float head = r.fp4_v() ? nvfp4_value_scale(r, range) : 1.0f;
    for (size_t i = 0; i < range.size(); ++i) {
      const float amax = range[i].abs_max();
      abs_max = std::max(abs_max, amax);
      if (r.fp4_v()) {
        out.s_v[i] = head;
        factor[i] = 1.0f / head;
      } else if (r.v_smooth()) {
        out.s_v[i] = smooth_scale(range[i]);
        factor[i] = 1.0f / out.s_v[i];
      } else if (amax >= 0x1p-100f) {
        out.s_v[i] = amax / 448.0f;
        factor[i] = 448.0f / amax;
      }
    }
  }
  EnergyMeter energy(abs_max);
  std::vector<float> rows(static_cast<size_t>(kBlock * d), 0.0f);
  for (int64_t j = 0; j < out.n_blocks; ++j) {
    const int64_t c0 = j * kBlock;
    int64_t n_valid = 0;
    for (; n_valid < kBlock && out.order[c0 + n_valid] >= 0; ++n_valid)
      p.v.load_row(sub.batch, kv_head, out.order[c0 + n_valid], rows.data() + n_valid * d);
    if (r.fp4_v()) {
      store_nvfp4_block(p, rows.data(), n_valid, j, factor[0], out);
    } else if (r.v_smooth()) {
      store_smooth_block(p, rows.data(), n_valid, j, out, factor);
    } else {
      store_plain_block(p, rows.data(), n_valid, c0, out, factor);
    }
    if (!r.v_smooth()) continue;
    for (int64_t n = 0; n < n_valid; ++n) energy.add_row(rows.data() + n * d, p.d);
    energy.add_block(out.mu + j * d, out.s_v, p.d, n_valid);
  }
  if (r.v_smooth()) out.stats->energy_removed = energy.removed();
}

float dequantised_value(const Recipe& r, const KvOperands& kv, int64_t column, int channel) {
  const int64_t at = column * kv.d_pad + channel;
  switch (r.v) {
    case VFormat::bf16:
      return kv.v_real[at];
    case VFormat::int8_smooth:
      return mul(int8_decode(static_cast<int8_t>(kv.v_codes[at])),
                 kv.v_scale[column / kBlock * kv.d_pad + channel]);
    case VFormat::nvfp4:
    case VFormat::nvfp4_smooth:
      return mul(e2m1_decode(fp4_get(kv.v_codes + column * kv.d_pad / 2, kv.d_pad, channel)),
                 ue4m3_decode(kv.v_micro[column / kMicroGroup * kv.d_pad + channel]));
    default:
      return e4m3_decode(kv.v_codes[at]);
  }
}

}  // namespace vca::spec
