// SPDX-License-Identifier: Apache-2.0
#include "cpu/backend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "spec/arith.hpp"
#include "spec/fp4.hpp"

namespace vca::cpu {
namespace {

using spec::PMap;
using spec::QkFormat;
using spec::Recipe;
using spec::Reference;
using spec::VFormat;

QkKind qk_kind(const Recipe& r) {
  if (r.qk == QkFormat::int8) return kQkInt8;
  if (r.qk == QkFormat::nvfp4) return kQkFp4;
  return r.qk == QkFormat::bf16 ? kQkBf16 : kQkE4m3;
}

PKind p_kind(const Recipe& r) {
  switch (r.p) {
    case PMap::expcast:
      return kPExpCast;
    case PMap::cast_e4m3:
      return kPCastE4m3;
    case PMap::cast_u8:
      return kPCastU8;
    case PMap::nvfp4:
      return kPFp4;
    case PMap::nvfp4_folded:
      return kPFp4Folded;
    default:
      return kPFp32;
  }
}

VKind v_kind(const Recipe& r) {
  if (r.v == VFormat::int8_smooth) return kVInt8;
  if (r.fp4_v()) return kVFp4;
  return r.v == VFormat::bf16 ? kVBf16 : kVE4m3;
}

OrderKind order_kind(const Recipe& r) {
  switch (r.flow()) {
    case spec::Flow::plain:
      return kOrderPlain;
    case spec::Flow::means:
      return kOrderMeans;
    case spec::Flow::local:
      return kOrderLocal;
    case spec::Flow::running:
      break;
  }
  return kOrderRunning;
}

TileFunction tile_function(Isa isa) {
  switch (isa) {
#if defined(VCA_HAVE_UNIT_AVX512)
    case Isa::avx512:
      return run_tile_avx512;
#endif
#if defined(VCA_HAVE_UNIT_AVX2)
    case Isa::avx2:
      return run_tile_avx2;
#endif
    default:
      return run_tile_portable;
  }
}

void empty_tile(const spec::Problem& p, int rows, Scratch& scratch) {
  std::fill_n(scratch.o, rows * p.d, 0.0f);
  std::fill_n(scratch.l, rows, 0.0f);
  std::fill_n(scratch.lse, rows, -std::numeric_limits<float>::infinity());
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return "cpu/avx512";
    case Isa::avx2:
      return "cpu/avx2";
    case Isa::portable:
      return "cpu/portable";
  }
  return "cpu/invalid";
}

std::string isa_refusal(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
  switch (isa) {
    case Isa::avx512:
#if defined(VCA_HAVE_UNIT_AVX512)
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vnni"))
        return "";
      return "this CPU lacks AVX-512 F, BW, VL, DQ or VNNI";
#else
      return "this build has no AVX-512 unit";
#endif
    case Isa::avx2:
#if defined(VCA_HAVE_UNIT_AVX2)
      if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "";
      return "this CPU lacks AVX2 or FMA";
#else
      return "this build has no AVX2 unit";
#endif
    case Isa::portable:
      return "";
  }
  return "unknown unit";
}

void attend_tile(Isa isa, const spec::Problem& p, const spec::KvOperands& kv,
                 const spec::QOperands& q, int64_t row0, int rows, const float* delta, bool lse,
                 Scratch& scratch) {
  if (kv.n_blocks == 0) {
    empty_tile(p, rows, scratch);
    return;
  }
  const Recipe& r = *p.recipe;
  const int e = spec::overflow_exponent(p, *q.max_q_scale, kv.stats->max_k_scale);
  float unit[kTileRows];
  for (int i = 0; i < rows; ++i) unit[i] = spec::query_unit(p, q, row0 + i, e);

  TileTask task{};
  task.qk = qk_kind(r);
  task.p = p_kind(r);
  task.v = v_kind(r);
  task.order_kind = order_kind(r);
  task.top = r.top;
  task.head_dim = p.d;
  task.qk_dims = p.hadamard ? p.d_pad : (p.d + 3) / 4 * 4;
  task.d_pad = p.d_pad;
  task.n_blocks = kv.n_blocks;
  task.order = kv.order;
  task.k_codes = kv.k_codes;
  task.k_real = kv.k_real;
  task.k_scale = kv.k_scale;
  task.v_codes = kv.v_codes;
  task.v_real = kv.v_real;
  task.mu = kv.mu;
  task.v_scale = kv.v_scale;
  task.s_v = kv.s_v;
  task.k_micro = kv.k_micro;
  task.v_micro = kv.v_micro;
  task.delta = delta;
  task.mask = q.mask_row(row0);
  task.rows = rows;
  const int64_t row_bytes = r.qk == QkFormat::nvfp4 ? q.d_pad / 2 : q.d_pad;
  task.q_codes = q.q_codes != nullptr ? q.q_codes + row0 * row_bytes : nullptr;
  task.q_micro = q.q_micro != nullptr ? q.q_micro + row0 * (q.d_pad / spec::kMicroGroup) : nullptr;
  task.q_real = q.q_real != nullptr ? q.q_real + row0 * q.d_pad : nullptr;
  task.q_unit = unit;
  task.exp2_fractions = spec::kExp2FractionBits.data();
  task.log_scales = spec::ue4m3_log_table().data();
  task.o = scratch.o;
  task.l = scratch.l;
  task.m_run = scratch.m_run;
  tile_function(isa)(task, scratch.aligned());

  if (!lse) return;
  constexpr double kLn2 = 0.6931471805599453;
  const double p_max = spec::p_of_maximum(r);
  for (int i = 0; i < rows; ++i) {
    const double offset = q.qk_offset != nullptr ? q.qk_offset[row0 + i] : 0.0;
    scratch.lse[i] = static_cast<float>(
        std::ldexp(scratch.m_run[i] * kLn2 / 8.0 + std::log(scratch.l[i] / p_max), e) + offset);
  }
}

}  // namespace vca::cpu
