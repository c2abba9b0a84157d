// SPDX-License-Identifier: Apache-2.0
// What a call on the device left behind, against the specification on the host.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "device/capi_support.hpp"

namespace vca::tests {

inline std::string status_text(vca_status status) {
  return status == VCA_OK ? "" : std::string(vca_status_str(status)) + ": " + vca_last_error();
}

template <class T, class F>
void for_each_in_parallel(const std::vector<T>& items, F work) {
  std::atomic<size_t> next{0};
  const auto loop = [&] {
    for (size_t i = next++; i < items.size(); i = next++) work(items[i]);
  };
  std::vector<std::thread> threads(
      std::min<size_t>(items.size(), std::max(1u, std::thread::hardware_concurrency())));
  for (std::thread& t : threads) t = std::thread(loop);
  for (std::thread& t : threads) t.join();
}

struct Rows {
  int64_t first, n;
};
// Both ends and the middle of every run of queries that see the same keys.
inline std::vector<Rows> sampled_rows(const Problem& p) {
  std::vector<Rows> runs, out;
  if (p.c.split != Split::sequences) runs.push_back({0, p.c.s_q});
  for (const vca_segment& s : p.segments)
    if (p.c.split == Split::sequences) runs.push_back({s.begin, s.len});
  for (const Rows& r : runs) {
    const int64_t n = std::min<int64_t>(r.n, 16);
    if (n == 0) continue;
    out.push_back({r.first, n});
    if (r.n > 2 * n) out.push_back({r.first + r.n / 2, n});
    if (r.n > n) out.push_back({r.first + r.n - n, n});
  }
  return out;
}

inline std::vector<int64_t> sampled_heads(int64_t heads) {
  std::vector<int64_t> out;
  for (const int64_t i : {int64_t{0}, heads / 2, heads * 4 / 5, heads - 1})
    if (i >= 0 && i < heads && (out.empty() || i > out.back())) out.push_back(i);
  return out;
}

// |scale q.k| of the offset that LSE adds back, by its largest elements.
inline double largest_logit(const Problem& p) {
  const double scale =
      p.c.scale != 1e9 ? std::fabs(p.c.scale) : 1.0 / std::sqrt(static_cast<double>(p.c.d));
  // make_inputs: at most 6 * 1.4, and 0.4 more for keys.
  return scale * p.c.d * 8.4 * 8.8;
}

class Comparison {
 public:
  Comparison(const Problem& p, const std::vector<uint8_t>& o, const std::vector<uint8_t>& lse)
      : p_(p), o_(o), lse_(lse) {}

  std::string run() {
    if (!p_.inputs_unchanged()) return "an input was written";
    if (const std::string name = p_.broken_guard(); !name.empty())
      return "wrote before or behind " + name;
    compare_samples();
    if (!failure_.empty()) return failure_;
    if (different_ > 0) return std::to_string(different_) + " values DIFFER" + first_;
    if (lse_wrong_ > 0) return std::to_string(lse_wrong_) + " LSE values DIFFER" + first_;
    return untouched();
  }
  std::string detail() const {
    char text[96];
    std::snprintf(text, sizeof text, "%lld values, LSE within %.1e",
                  static_cast<long long>(compared_), lse_error_);
    return text;
  }

 private:
  size_t o_at(int64_t b, int64_t h, int64_t s, int64_t d) const {
    const int64_t* t = p_.host.o.stride;
    return static_cast<size_t>((p_.c.o_offset + b * t[0] + h * t[1] + s * t[2] + d) *
                               element_bytes(p_.c.o_dtype));
  }

  // The specification is slow and thread safe: every sample a thread.
  void compare_samples() {
    struct Sample {
      int64_t b, h;
      Rows rows;
    };
    std::vector<Sample> samples;
    for (const int64_t bh : sampled_heads(p_.c.b * p_.c.h_q))
      for (const Rows& rows : sampled_rows(p_))
        samples.push_back({bh / p_.c.h_q, bh % p_.c.h_q, rows});
    for_each_in_parallel(samples, [this](const Sample& s) { compare(s.b, s.h, s.rows); });
  }

  void compare(int64_t b, int64_t h, const Rows& rows) {
    const auto n = static_cast<size_t>(rows.n), d = static_cast<size_t>(p_.c.d);
    std::vector<float> want(n * d), want_lse(n);
    vca_ref_io io{};
    io.struct_size = sizeof io;
    io.o = want.data();
    io.lse = want_lse.data();
    vca_attn_desc desc = p_.host;
    desc.num_threads = 1;
    const vca_status status = vca_ref_attn(&desc, VCA_TARGET_SM90, b, h, rows.first, rows.n, &io);
    const std::lock_guard lock(mutex_);
    if (status != VCA_OK) failure_ = "vca_ref_attn: " + status_text(status);
    for (size_t i = 0; i < n && status == VCA_OK; ++i) {
      const int64_t row = rows.first + static_cast<int64_t>(i);
      for (size_t x = 0; x < d; ++x) {
        uint32_t got = 0;
        std::memcpy(&got, o_.data() + o_at(b, h, row, static_cast<int64_t>(x)),
                    static_cast<size_t>(element_bytes(p_.c.o_dtype)));
        ++compared_;
        const uint32_t wanted = encode(p_.c.o_dtype, want[i * d + x]);
        if (got == wanted) continue;
        note(b, h, row, static_cast<int64_t>(x), got, wanted);
        ++different_;
      }
      if (p_.c.lse) compare_lse(b, h, row, want_lse[i]);
    }
  }

  // Each side rounds four sums and products of terms that are no larger than the bound, and takes
  // one logarithm (an ulp); 2^-24 relative each.
  void compare_lse(int64_t b, int64_t h, int64_t row, float want) {
    float got = 0;
    std::memcpy(&got, lse_.data() + ((b * p_.c.h_q + h) * p_.c.s_q + row) * 4, 4);
    const double bound = 10 * 0x1p-24 * (std::fabs(double{want}) + 40 + 2 * largest_logit(p_));
    if (std::isinf(want) ? got == want : std::fabs(double{got} - want) <= bound) {
      if (!std::isinf(want)) lse_error_ = std::max(lse_error_, std::fabs(double{got} - want));
      return;
    }
    note(b, h, row, -1, vca::spec::float_bits(got), vca::spec::float_bits(want));
    ++lse_wrong_;
  }

  void note(int64_t b, int64_t h, int64_t row, int64_t x, uint32_t got, uint32_t want) {
    if (!first_.empty()) return;
    char text[128];
    std::snprintf(text, sizeof text, " (first at [%lld, %lld, %lld, %lld]: %x, not %x)",
                  static_cast<long long>(b), static_cast<long long>(h), static_cast<long long>(row),
                  static_cast<long long>(x), got, want);
    first_ = text;
  }

  // Rows are written whole, and nothing but rows.
  std::string untouched() const {
    std::vector<uint8_t> row_byte(o_.size(), 0);
    const auto e = static_cast<size_t>(element_bytes(p_.c.o_dtype));
    int64_t poisoned = 0;
    for (int64_t b = 0; b < p_.c.b; ++b)
      for (int64_t h = 0; h < p_.c.h_q; ++h)
        for (int64_t s = 0; s < p_.c.s_q; ++s)
          for (int64_t x = 0; x < p_.c.d; ++x) {
            const size_t at = o_at(b, h, s, x);
            bool same = true;
            for (size_t i = 0; i < e; ++i) {
              row_byte[at + i] = 1;
              same = same && o_[at + i] == kPoison;
            }
            poisoned += same;
          }
    if (poisoned > 0) return std::to_string(poisoned) + " values of o were not written";
    for (size_t i = 0; i < o_.size(); ++i)
      if (row_byte[i] == 0 && o_[i] != kPoison) return "wrote between or behind the rows of o";
    const size_t n = p_.c.lse ? p_.lse_count() * 4 : 0;
    for (size_t i = n; i < lse_.size(); ++i)
      if (lse_[i] != kPoison) return "wrote lse, which was not asked for";
    for (size_t i = 0; i + 4 <= n; i += 4)
      if (std::memcmp(lse_.data() + i, "\xFF\xFF\xFF\xFF", 4) == 0) return "lse was not written";
    return "";
  }

  const Problem& p_;
  const std::vector<uint8_t>&o_, &lse_;
  std::mutex mutex_;
  std::string failure_, first_;
  int64_t compared_ = 0, different_ = 0, lse_wrong_ = 0;
  double lse_error_ = 0.0;
};

}  // namespace vca::tests
