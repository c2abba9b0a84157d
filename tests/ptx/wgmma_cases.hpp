// SPDX-License-Identifier: Apache-2.0
// Every wgmma shape of the layer on swizzled tiles made by spec/tiles.hpp, against the chip model
// of the specification. Fragments are addressed as the head of ptx/wgmma.hpp states them, written
// here once more.
#pragma once

#include <algorithm>

#include "ptx/harness.hpp"
#include "spec/codes.hpp"
#include "spec/mma_model.hpp"
#include "spec/tiles.hpp"

namespace vca::tests {

// Barrier after the tiles; each thread then knows that they have landed.
VCA_DEVICE void load_tile(ptx::SmemAddr to, const uint8_t* from, uint32_t bytes, ptx::SmemAddr bar,
                          uint32_t parity) {
  if (ptx::thread_index() == 0) {
    ptx::mbarrier_arrive_expect_tx(bar, bytes);
    ptx::cp_async_bulk_g2s(to, from, bytes, bar);
  }
  ptx::mbarrier_wait_parity(bar, parity);
}
VCA_DEVICE void init_barrier(ptx::SmemAddr bar) {
  if (ptx::thread_index() == 0) {
    ptx::mbarrier_init(bar, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::bar_sync(0, 128);
}

// Element (row, column) of register i of this thread.
VCA_DEVICE uint32_t fragment_row(uint32_t i) {
  const uint32_t t = ptx::thread_index();
  return 16u * (t / 32u) + t % 32u / 4u + (i % 4u >= 2u ? 8u : 0u);
}
VCA_DEVICE uint32_t fragment_column(uint32_t i) {
  return i / 4u * 8u + ptx::thread_index() % 4u * 2u + i % 2u;
}

// ---- A and B from shared memory: Q and K tiles ---------------------------------------------

// kInRegisters: A from registers instead, INT8 only.
template <int kD, bool kInteger, bool kInRegisters = false>
struct SsKernel {
  static constexpr uint32_t kTileBytes = 128u * kD;
  const uint8_t* a;  // tile of 128 rows, or [128][kD]
  const uint8_t* b;  // the same
  uint32_t* c;       // [2][64][128]: rows 0-63 and 64-127 of the A tile
  bool accumulate;
  VCA_DEVICE void operator()() const {
    const ptx::SmemAddr smem = ptx::dynamic_smem();
    // A barrier each: on one barrier, thread 0 could be two phases ahead of a thread that waits.
    const ptx::SmemAddr bar = smem + 2 * kTileBytes;
    init_barrier(bar);
    init_barrier(bar + 8);
    if (!kInRegisters) load_tile(smem, a, kTileBytes, bar, 0);
    load_tile(smem + kTileBytes, b, kTileBytes, bar + 8, 0);
    constexpr ptx::Swizzle kSwizzle = kD == 128 ? ptx::Swizzle::b128 : ptx::Swizzle::b64;
    for (uint32_t half = 0; half < 2; ++half) {
      using Register = std::conditional_t<kInteger, int32_t, float>;
      Register d[64];
      for (uint32_t i = 0; i < 64; ++i) {
        const uint32_t word = c[half * 8192 + fragment_row(i) * 128 + fragment_column(i)];
        if constexpr (kInteger)
          d[i] = static_cast<int32_t>(word);
        else
          d[i] = ptx::bits_float(word);
      }
      const ptx::MatrixDesc a_desc = ptx::matrix_desc(smem + half * (kTileBytes / 2), kSwizzle);
      const ptx::MatrixDesc b_desc = ptx::matrix_desc(smem + kTileBytes, kSwizzle);
      uint32_t a_rows[kD / 32][4];
      for (uint32_t k = 0; kInRegisters && k < kD / 32u; ++k) {
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t t = ptx::thread_index(), lane = t % 32;
          const uint32_t row = half * 64 + t / 32 * 16 + lane / 4 + i % 2 * 8;
          std::memcpy(&a_rows[k][i], a + row * kD + 32 * k + i / 2 * 16 + lane % 4 * 4, 4);
        }
      }
      ptx::wgmma_fence();
      for (uint32_t k = 0; k < kD / 32u; ++k) {
        const ptx::MatrixDesc a_k = ptx::advance(a_desc, 32 * k);
        const ptx::MatrixDesc b_k = ptx::advance(b_desc, 32 * k);
        if constexpr (kInRegisters)
          ptx::wgmma_m64n128k32_s32_s8_s8(d, a_rows[k], b_k, accumulate || k != 0);
        else if constexpr (kInteger)
          ptx::wgmma_m64n128k32_s32_s8_s8(d, a_k, b_k, accumulate || k != 0);
        else
          ptx::wgmma_m64n128k32_f32_e4m3_e4m3(d, a_k, b_k, accumulate || k != 0);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      for (uint32_t i = 0; kInRegisters && i < kD / 8u; ++i) ptx::keep(a_rows[i / 4][i % 4]);
      for (uint32_t i = 0; i < 64; ++i) {
        ptx::keep(d[i]);
        uint32_t word;
        if constexpr (kInteger)
          word = static_cast<uint32_t>(d[i]);
        else
          word = ptx::float_bits(d[i]);
        c[half * 8192 + fragment_row(i) * 128 + fragment_column(i)] = word;
      }
    }
  }
};

inline std::vector<uint8_t> random_codes(size_t n, Numbers& numbers, bool integer) {
  std::vector<uint8_t> codes(n);
  for (uint8_t& code : codes) {
    code = static_cast<uint8_t>(numbers.bits());
    if (!integer && (code & 0x7Fu) == 0x7Fu) code = 0;  // NaN has its own case
  }
  return codes;
}

// c (rows x n FP32 bits) += a . b^T in k steps of one instruction.
inline void expect_product(spec::Instr instr, const std::vector<float>& a,
                           const std::vector<float>& b, int64_t rows, int64_t n, int64_t k,
                           std::vector<uint32_t>& c) {
  const spec::MmaModel model = spec::mma_model(spec::Target::sm90, instr);
  std::vector<float> bt(static_cast<size_t>(n * k)), row(static_cast<size_t>(n));
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < k; ++i) bt[i * n + j] = b[j * k + i];
  }
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(row.data(), c.data() + r * n, static_cast<size_t>(n) * 4);
    spec::mma_accumulate_f32(model, a.data() + r * k, bt.data(), n, k, n, row.data());
    std::memcpy(c.data() + r * n, row.data(), static_cast<size_t>(n) * 4);
  }
}

inline std::vector<float> decode_e4m3(const std::vector<uint8_t>& codes) {
  std::vector<float> values(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) values[i] = spec::e4m3_decode(codes[i]);
  return values;
}

template <int kD, bool kInteger, bool kInRegisters = false>
void ss_case(Report& report, bool accumulate) {
  Numbers numbers(kD + (kInteger ? 1u : 0u) + (accumulate ? 2u : 0u));
  const std::vector<uint8_t> a = random_codes(128 * kD, numbers, kInteger);
  const std::vector<uint8_t> b = random_codes(128 * kD, numbers, kInteger);
  Buffer<uint8_t> a_tile(128 * kD), b_tile(128 * kD);
  if (kInRegisters)
    std::copy(a.begin(), a.end(), &a_tile[0]);
  else
    spec::t128_store_qk(a.data(), kD, &a_tile[0]);
  spec::t128_store_qk(b.data(), kD, &b_tile[0]);
  a_tile.upload();
  b_tile.upload();
  std::vector<uint32_t> start(128 * 128);
  for (uint32_t& word : start) {
    word = kInteger ? numbers.bits() % 1000u : spec::float_bits(numbers.uniform(5000.0f));
  }
  std::vector<uint32_t> want(128 * 128, 0);
  if (accumulate) want = start;
  if (kInteger) {
    for (int r = 0; r < 128; ++r) {
      for (int j = 0; j < 128; ++j) {
        int32_t sum = 0;
        for (int i = 0; i < kD; ++i) {
          sum += static_cast<int8_t>(a[r * kD + i]) * static_cast<int8_t>(b[j * kD + i]);
        }
        want[r * 128 + j] += static_cast<uint32_t>(sum);
      }
    }
  } else {
    expect_product(spec::Instr::qk_e4m3, decode_e4m3(a), decode_e4m3(b), 128, 128, kD, want);
  }
  Buffer<uint32_t> c(start);
  const uint32_t smem = 2 * 128 * kD + 16;
  c.upload();
  const SsKernel<kD, kInteger, kInRegisters> kernel{a_tile.device(), b_tile.device(), c.device(),
                                                    accumulate};
  run(report, {1, 128, smem}, kernel, [&] {
    expect_equal(report, kInRegisters ? "s8 RS" : kInteger ? "s8" : "e4m3 SS", c, want);
    std::copy(start.begin(), start.end(), &c[0]);
    c.upload();
  });
}

inline void wgmma_s8(Report& report) {
  for (const bool accumulate : {false, true}) {
    ss_case<128, true>(report, accumulate);
    ss_case<64, true>(report, accumulate);
    ss_case<128, true, true>(report, accumulate);
    ss_case<64, true, true>(report, accumulate);
  }
}
inline void wgmma_e4m3_ss(Report& report) {
  for (const bool accumulate : {false, true}) {
    ss_case<128, false>(report, accumulate);
    ss_case<64, false>(report, accumulate);
  }
}

// ---- A from registers: P and V tiles -------------------------------------------------------

// kIndicators 8: the value rows and the indicator rows of the tile; 0: the value rows alone.
template <int kD, int kIndicators>
struct PvKernel {
  static constexpr uint32_t kN = kD + kIndicators;
  static constexpr uint32_t kTileBytes = kN * 128u;
  const uint8_t* p;  // [64][128] codes, row-major, columns in the order of V's tile
  const uint8_t* v;  // V tile
  float* c;          // [64][kN]
  bool accumulate;
  VCA_DEVICE void operator()() const {
    const ptx::SmemAddr smem = ptx::dynamic_smem();
    const ptx::SmemAddr bar = smem + kTileBytes;
    init_barrier(bar);
    load_tile(smem, v, kTileBytes, bar, 0);
    float d[kN / 2];
    for (uint32_t i = 0; i < kN / 2; ++i) d[i] = c[fragment_row(i) * kN + fragment_column(i)];
    const uint32_t lane = ptx::thread_index() % 32u;
    uint32_t a[16];
    for (uint32_t k = 0; k < 4; ++k) {
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = 16u * (ptx::thread_index() / 32u) + lane / 4u + (i % 2u) * 8u;
        const uint8_t* at = p + row * 128 + 32 * k + 4u * (lane % 4u) + (i / 2u) * 16u;
        a[4 * k + i] = at[0] | uint32_t{at[1]} << 8 | uint32_t{at[2]} << 16 | uint32_t{at[3]} << 24;
      }
    }
    for (uint32_t i = 0; i < 16; ++i) ptx::keep(a[i]);
    const ptx::MatrixDesc desc = ptx::matrix_desc(smem, ptx::Swizzle::b128);
    ptx::wgmma_fence();
    for (uint32_t k = 0; k < 4; ++k) {
      if constexpr (kN == 128)
        ptx::wgmma_m64n128k32_f32_e4m3_e4m3(d, a + 4 * k, ptx::advance(desc, 32 * k),
                                            accumulate || k != 0);
      else if constexpr (kN == 64)
        ptx::wgmma_m64n64k32_f32_e4m3_e4m3(d, a + 4 * k, ptx::advance(desc, 32 * k),
                                           accumulate || k != 0);
      else if constexpr (kN == 136)
        ptx::wgmma_m64n136k32_f32_e4m3_e4m3(d, a + 4 * k, ptx::advance(desc, 32 * k),
                                            accumulate || k != 0);
      else
        ptx::wgmma_m64n72k32_f32_e4m3_e4m3(d, a + 4 * k, ptx::advance(desc, 32 * k),
                                           accumulate || k != 0);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    for (uint32_t i = 0; i < kN / 2; ++i) {
      ptx::keep(d[i]);
      c[fragment_row(i) * kN + fragment_column(i)] = d[i];
    }
  }
};

template <int kD, int kIndicators = 8>
void pv_case(Report& report, bool accumulate, bool nan_codes) {
  constexpr int kN = kD + kIndicators;
  constexpr int kIndicator = 5;
  Numbers numbers(100u + kD + (accumulate ? 1u : 0u));
  std::vector<uint8_t> p = random_codes(64 * 128, numbers, false);
  for (uint8_t& code : p) code &= 0x7Fu;  // probabilities
  if (nan_codes) p[3 * 128 + 17] = 0x7F;
  const std::vector<uint8_t> v = random_codes(128 * kD, numbers, false);  // [key][channel]
  std::vector<uint8_t> valid(128, 1);
  valid[77] = 0;
  Buffer<uint8_t> v_tile(spec::t128_v_tile_bytes(kD)), p_buffer(64 * 128);
  spec::t128_store_v(v.data(), valid.data(), kD, kIndicator, &v_tile[0]);
  // Column c of the tile holds key v_key_of_column(c): P is given in that order.
  std::vector<float> p_values(64 * 128), v_values(static_cast<size_t>(kN) * 128, 0.0f);
  for (int column = 0; column < 128; ++column) {
    const int key = spec::v_key_of_column(column);
    for (int r = 0; r < 64; ++r) {
      p_buffer[r * 128 + column] = p[r * 128 + key];
      p_values[r * 128 + column] = spec::e4m3_decode(p[r * 128 + key]);
    }
    if (valid[key] == 0) continue;
    for (int d = 0; d < kD; ++d) v_values[d * 128 + column] = spec::e4m3_decode(v[key * kD + d]);
    if (kIndicators > 0) v_values[(kD + kIndicator) * 128 + column] = 1.0f;
  }
  v_tile.upload();
  p_buffer.upload();
  std::vector<float> start(static_cast<size_t>(64 * kN));
  for (float& x : start) x = numbers.uniform(3000.0f);
  std::vector<uint32_t> bits(start.size(), 0);
  if (accumulate) std::memcpy(bits.data(), start.data(), bits.size() * 4);
  expect_product(spec::Instr::pv_e4m3, p_values, v_values, 64, kN, 128, bits);
  std::vector<float> want(start.size());
  std::memcpy(want.data(), bits.data(), bits.size() * 4);
  Buffer<float> c(start);
  c.upload();
  using Kernel = PvKernel<kD, kIndicators>;
  const Kernel kernel{p_buffer.device(), v_tile.device(), c.device(), accumulate};
  run(report, {1, 128, Kernel::kTileBytes + 8}, kernel, [&] {
    expect_equal(report, "e4m3 RS", c, want);
    std::copy(start.begin(), start.end(), &c[0]);
    c.upload();
  });
}

inline void wgmma_e4m3_rs(Report& report) {
  for (const bool accumulate : {false, true}) {
    pv_case<128>(report, accumulate, false);
    pv_case<64>(report, accumulate, false);
    pv_case<128, 0>(report, accumulate, false);
    pv_case<64, 0>(report, accumulate, false);
  }
}
// The bits of the NaN are an assumption of the model until a chip has run this.
inline void wgmma_e4m3_nan(Report& report) { pv_case<128>(report, false, true); }

// ---- tf32: block sums and means ------------------------------------------------------------

template <int kD>
struct MeanKernel {
  static constexpr uint32_t kTileBytes = kD * 32u;
  const float* r;     // [groups][64][8] in the order of the tile's columns
  const uint8_t* mu;  // [groups] tiles
  float* c;           // [64][kD]
  uint32_t groups;
  VCA_DEVICE void operator()() const {
    const ptx::SmemAddr smem = ptx::dynamic_smem();
    const ptx::SmemAddr bar = smem + 2 * kTileBytes;
    init_barrier(bar);
    const uint32_t lane = ptx::thread_index() % 32u;
    // As in the kernel: the head of a longer array.
    float d[kD / 2 + 4];
    for (uint32_t i = 0; i < kD / 2; ++i) d[i] = c[fragment_row(i) * kD + fragment_column(i)];
    for (uint32_t g = 0; g < groups; ++g) {
      const ptx::SmemAddr tile = smem + (g % 2) * kTileBytes;
      load_tile(tile, mu + g * kTileBytes, kTileBytes, bar, g & 1u);
      const float* at =
          r + (g * 64 + 16u * (ptx::thread_index() / 32u) + lane / 4u) * 8 + lane % 4u;
      uint32_t a[4] = {ptx::cvt_rna_tf32_f32(at[0]), ptx::cvt_rna_tf32_f32(at[64]),
                       ptx::cvt_rna_tf32_f32(at[4]), ptx::cvt_rna_tf32_f32(at[68])};
      for (uint32_t i = 0; i < 4; ++i) ptx::keep(a[i]);
      ptx::wgmma_fence();
      const ptx::MatrixDesc desc = ptx::matrix_desc(tile, ptx::Swizzle::b32);
      if constexpr (kD == 128)
        ptx::wgmma_m64n128k8_f32_tf32_tf32(d, a, desc, true);
      else
        ptx::wgmma_m64n64k8_f32_tf32_tf32(d, a, desc, true);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      ptx::bar_sync(0, 128);  // WAR: the next tile but one goes where this one was
    }
    for (uint32_t i = 0; i < kD / 2; ++i) {
      ptx::keep(d[i]);
      c[fragment_row(i) * kD + fragment_column(i)] = d[i];
    }
  }
};

template <int kD>
void mean_case(Report& report) {
  constexpr uint32_t kGroups = 3;
  Numbers numbers(200u + kD);
  std::vector<float> r(kGroups * 64 * 8), start(64 * kD);
  for (float& x : r) x = numbers.uniform(1.0f) * 50000.0f + 50000.0f;
  for (float& x : start) x = numbers.uniform(1e5f);
  Buffer<uint8_t> mu(kGroups * spec::t128_mu_tile_bytes(kD));
  Buffer<float> r_buffer(r.size());
  std::vector<uint32_t> bits(start.size());
  std::memcpy(bits.data(), start.data(), bits.size() * 4);
  for (uint32_t g = 0; g < kGroups; ++g) {
    std::vector<float> means(8 * kD);  // [block][channel]
    for (float& x : means) x = spec::bf16_round(numbers.uniform(1.0f));
    spec::t128_store_mu(means.data(), 8, kD, &mu[g * spec::t128_mu_tile_bytes(kD)]);
    std::vector<float> a(64 * 8), b(static_cast<size_t>(kD) * 8);
    for (int column = 0; column < 8; ++column) {
      const int block = spec::kMuBlockOfColumn[column];
      for (int row = 0; row < 64; ++row) {
        const float value = r[(g * 64 + row) * 8 + block];
        r_buffer[(g * 64 + row) * 8 + column] = value;
        a[row * 8 + column] = spec::rna_tf32(value);
      }
      for (int d = 0; d < kD; ++d) b[d * 8 + column] = means[block * kD + d];
    }
    expect_product(spec::Instr::mean_tf32, a, b, 64, kD, 8, bits);
  }
  std::vector<float> want(start.size());
  std::memcpy(want.data(), bits.data(), bits.size() * 4);
  mu.upload();
  r_buffer.upload();
  Buffer<float> c(start);
  c.upload();
  const MeanKernel<kD> kernel{r_buffer.device(), mu.device(), c.device(), kGroups};
  run(report, {1, 128, 2 * MeanKernel<kD>::kTileBytes + 8}, kernel, [&] {
    expect_equal(report, "tf32", c, want);
    std::copy(start.begin(), start.end(), &c[0]);
    c.upload();
  });
}

inline void wgmma_tf32(Report& report) {
  mean_case<128>(report);
  mean_case<64>(report);
}

// ---- operand written by st.shared ----------------------------------------------------------

// B without a bulk copy: generic writes, proxy fence, barrier, wgmma. One column of ones in an
// otherwise zero s8 matrix picks rows of A.
struct GenericOperandKernel {
  const uint8_t* a;  // Q tile, d = 64
  int32_t* c;        // [64][128]
  VCA_DEVICE void operator()() const {
    constexpr uint32_t kTileBytes = 128 * 64;
    const ptx::SmemAddr smem = ptx::dynamic_smem();
    const ptx::SmemAddr bar = smem + 2 * kTileBytes;
    init_barrier(bar);
    load_tile(smem, a, kTileBytes, bar, 0);
    const ptx::SmemAddr b = smem + kTileBytes;
    // Row n (= column n of the result) holds 1 at k = n mod 64.
    const uint32_t n = ptx::thread_index();
    for (uint32_t word = 0; word < 16; ++word) {
      const uint32_t bits = n % 64u / 4u == word ? 1u << (8u * (n % 4u)) : 0u;
      ptx::st_shared_f32(b + ptx::swizzled_offset(n, 4u * word, ptx::Swizzle::b64),
                         ptx::bits_float(bits));
    }
    ptx::fence_proxy_async_shared_cta();
    ptx::bar_sync(0, 128);
    int32_t d[64];
    for (uint32_t i = 0; i < 64; ++i) d[i] = 0;
    ptx::wgmma_fence();
    for (uint32_t k = 0; k < 2; ++k) {
      ptx::wgmma_m64n128k32_s32_s8_s8(
          d, ptx::advance(ptx::matrix_desc(smem, ptx::Swizzle::b64), 32 * k),
          ptx::advance(ptx::matrix_desc(b, ptx::Swizzle::b64), 32 * k), true);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    for (uint32_t i = 0; i < 64; ++i) {
      ptx::keep(d[i]);
      c[fragment_row(i) * 128 + fragment_column(i)] = d[i];
    }
  }
};

inline void wgmma_generic_operand(Report& report) {
  Numbers numbers(300);
  const std::vector<uint8_t> a = random_codes(128 * 64, numbers, true);
  Buffer<uint8_t> tile(128 * 64);
  spec::t128_store_qk(a.data(), 64, &tile[0]);
  tile.upload();
  std::vector<int32_t> want(64 * 128);
  for (int row = 0; row < 64; ++row) {
    for (int n = 0; n < 128; ++n) want[row * 128 + n] = static_cast<int8_t>(a[row * 64 + n % 64]);
  }
  Buffer<int32_t> c(want.size());
  run(report, {1, 128, 2 * 128 * 64 + 8}, GenericOperandKernel{tile.device(), c.device()},
      [&] { expect_equal(report, "operand by st.shared", c, want); });
}

}  // namespace vca::tests
