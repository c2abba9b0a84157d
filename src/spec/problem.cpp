// SPDX-License-Identifier: Apache-2.0
#include "spec/problem.hpp"

#include <cmath>
#include <cstring>

#include "spec/codes.hpp"

namespace vca::spec {
namespace {

constexpr double kLog2E = 1.4426950408889634;

template <class Bits, class Decode>
void load_16bit(const void* data, int64_t offset, int64_t d, Decode decode, float* out) {
  // memcpy: a view may be misaligned for its type.
  const char* at = static_cast<const char*>(data) + offset * static_cast<int64_t>(sizeof(Bits));
  for (int64_t i = 0; i < d; ++i) {
    Bits bits;
    std::memcpy(&bits, at + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    out[i] = decode(bits);
  }
}

}  // namespace

void TensorView::load_row(int64_t b, int64_t h, int64_t s, float* out) const {
  const int64_t offset = b * stride[0] + h * stride[1] + s * stride[2];
  const int64_t d = shape[3];
  switch (dtype) {
    case DType::bf16:
      load_16bit<uint16_t>(data, offset, d, bf16_decode, out);
      return;
    case DType::fp16:
      load_16bit<uint16_t>(data, offset, d, fp16_decode, out);
      return;
    case DType::fp32:
      std::memcpy(out, static_cast<const char*>(data) + offset * 4, static_cast<size_t>(d) * 4);
      return;
  }
}

void Problem::set_tensors(const TensorView& query, const TensorView& key, const TensorView& value) {
  q = query;
  k = key;
  v = value;
  batches = q.shape[0];
  h_q = q.shape[1];
  h_kv = k.shape[1];
  s_q = q.shape[2];
  s_kv = k.shape[2];
  d = static_cast<int>(q.shape[3]);
  d_pad = padded_head_dim(d);
  scale = 1.0 / std::sqrt(static_cast<double>(d));
}

float Problem::code_scale() const {
  double c = 8.0 * kLog2E * std::fabs(scale);
  if (hadamard) c /= d_pad;  // both sides rotated by an unnormalised H: q.k grows by d_pad
  return static_cast<float>(c);
}

double p_of_maximum(const Recipe& r) {
  switch (r.p) {
    case PMap::fp64:
    case PMap::fp32:
      return 1.0;
    case PMap::cast_e4m3:
      return 448.0;
    case PMap::cast_u8:
      return 255.0;
    case PMap::expcast:
      return 448.0 * std::exp2((static_cast<double>(r.top) - 126.0) / 8.0);
    case PMap::nvfp4:
    case PMap::nvfp4_folded:
    case PMap::expcast4:
      return r.top == 0.0f ? 1.0 : 2688.0;
  }
  return 1.0;
}

}  // namespace vca::spec
