// SPDX-License-Identifier: Apache-2.0
#include "spec/block_operands.hpp"

#include "spec/arith.hpp"
#include "spec/codes.hpp"
#include "spec/fp4.hpp"
#include "spec/value_stats.hpp"

namespace vca::spec {
namespace {

// NVFP4 keys, decoded for the CPU, as elements and scales for a chip.
void load_nvfp4_keys(const KvOperands& kv, int64_t c0, bool decoded, BlockOperands& out) {
  const int d = kv.d_pad;
  out.k_columns.resize(static_cast<size_t>(d * kBlock));
  out.k_scales.resize(static_cast<size_t>(d / kMicroGroup * kBlock));
  for (int64_t n = 0; n < kBlock; ++n)
    for (int i = 0; i < d; ++i) {
      const float scale = ue4m3_decode(kv.k_micro[((c0 + n) * d + i) / kMicroGroup]);
      const float element = e2m1_decode(fp4_get(kv.k_codes + (c0 + n) * d / 2, d, i));
      out.k_scales[static_cast<size_t>(i / kMicroGroup * kBlock + n)] = scale;
      out.k_columns[static_cast<size_t>(i * kBlock + n)] = decoded ? mul(element, scale) : element;
    }
}

void load_nvfp4_values(const KvOperands& kv, int64_t c0, bool decoded, BlockOperands& out) {
  const int d = kv.d_pad, width = d + kGroupBlocks;
  out.v_scales.assign(static_cast<size_t>(kBlock / kMicroGroup * width), 0.0f);
  for (int64_t n = 0; n < kBlock; ++n)
    for (int i = 0; i < d; ++i) {
      const float scale = ue4m3_decode(kv.v_micro[(c0 + n) / kMicroGroup * d + i]);
      const float element = e2m1_decode(fp4_get(kv.v_codes + (c0 + n) * d / 2, d, i));
      out.v_scales[static_cast<size_t>(n / kMicroGroup * width + i)] = scale;
      out.v[static_cast<size_t>(n * width + i)] = decoded ? mul(element, scale) : element;
    }
}

}  // namespace

void load_block(const Problem& p, const KvOperands& kv, int64_t j, Target target,
                BlockOperands& out) {
  const Recipe& r = *p.recipe;
  const int d = kv.d_pad, width = d + kGroupBlocks;
  const int64_t c0 = j * kBlock;
  if (r.qk == QkFormat::nvfp4) {
    load_nvfp4_keys(kv, c0, target == Target::cpu, out);
  } else if (!r.integer_scores()) {
    out.k_columns.resize(static_cast<size_t>(d * kBlock));
    for (int64_t n = 0; n < kBlock; ++n)
      for (int i = 0; i < d; ++i)
        out.k_columns[static_cast<size_t>(i * kBlock + n)] =
            r.qk == QkFormat::bf16 ? kv.k_real[(c0 + n) * d + i]
                                   : e4m3_decode(kv.k_codes[(c0 + n) * d + i]);
  }
  out.v.assign(static_cast<size_t>(kBlock * width), 0.0f);
  if (r.fp4_v()) {
    for (int64_t n = 0; n < kBlock; ++n) out.valid[n] = kv.order[c0 + n] >= 0;
    load_nvfp4_values(kv, c0, target == Target::cpu, out);
    return;
  }
  for (int64_t n = 0; n < kBlock; ++n) {
    out.valid[n] = kv.order[c0 + n] >= 0;
    float* row = out.v.data() + n * width;
    for (int i = 0; i < d; ++i) {
      // vc8-hq multiplies integers; its channel scale follows the product.
      row[i] = r.v == VFormat::int8_smooth
                   ? int8_decode(static_cast<int8_t>(kv.v_codes[(c0 + n) * d + i]))
                   : dequantised_value(r, kv, c0 + n, i);
    }
    if (out.valid[n]) row[d + j % kGroupBlocks] = 1.0f;
  }
}

}  // namespace vca::spec
