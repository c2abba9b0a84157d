// SPDX-License-Identifier: Apache-2.0
// Where recipe AUTO declines: calls on a device that are too short for the preprocessing to pay.
#pragma once

#include <cstdint>
#include <string>

#include "core/request.hpp"

namespace vca::core {

// What the call does about the order of values, which is part of what a whole call costs.
enum class Ordering {
  token,  // nothing: identity was asked for
  kept,   // a group state keeps an order up from step to step
  anew,   // no state: a new order every call, by far the dearest
};
Ordering ordering_of(const Request& request);

struct BreakEven {
  spec::Target target;
  int head_dim;  // padded
  Ordering ordering;
  int64_t min_tokens;  // of queries and of keys: from here on a whole call beats BF16 attention
  // "measured on ..., date" once bench/results says so; NULL: assumed. Assumed means: the shortest
  // length at which the kernel alone has to hold its own; the preprocessing only moves it up.
  const char* measured;
};

// "always": AUTO declines nothing. For tests, and for measuring the break-even itself.
inline constexpr const char* kAutoVariable = "VCATTN_AUTO";

// Square shapes with 8, 24 and 40 heads, vc8 and vc8-turbo against the faster of FlashAttention-3
// and cuDNN in BF16: bench/break_even.py, from bench/results/h200-20261130-4.json and
// parts/h200-20261130-4.json. The table with every length: docs/benchmarking.md.
// `anew` was measured on the first step of a run, which makes half the pair passes of a call
// without a state.
inline constexpr const char* kMeasuredSm90 = "measured on one H200, 2026-11-30";
inline constexpr BreakEven kBreakEven[] = {
    {spec::Target::sm90, 64, Ordering::token, 8192, kMeasuredSm90},
    {spec::Target::sm90, 64, Ordering::kept, 8192, kMeasuredSm90},
    {spec::Target::sm90, 64, Ordering::anew, 16384, kMeasuredSm90},
    {spec::Target::sm90, 128, Ordering::token, 8192, kMeasuredSm90},
    {spec::Target::sm90, 128, Ordering::kept, 16384, kMeasuredSm90},
    {spec::Target::sm90, 128, Ordering::anew, 32768, kMeasuredSm90},
};
// The row of a request; NULL where there is none.
const BreakEven* break_even_of(const Request& request);

// Why AUTO does not run this request on its device; "" for a named recipe, on the CPU, for calls
// that are long enough and for those without a query or key. The length of a ragged batch is that
// of its longest sequence; kv_lens and key_mask are known on the device only and shorten nothing
// here.
std::string auto_declines(const Request& request);

}  // namespace vca::core
