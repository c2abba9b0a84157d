// SPDX-License-Identifier: Apache-2.0
//
// Token grouping of one (batch, kv head): the order in which V rows (and their keys) are cut into
// 128-row blocks whose mean is removed. Integers only, no random numbers, ties to the lower index:
// the same permutation on every backend. The algorithm is told in docs/grouping.md.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace vca::spec {

enum class Grouping { identity, cubes, kdtree, vsmooth, kmeans, balanced, automatic };

/// Command-line and API spelling; `automatic` is "auto".
const char* to_string(Grouping kind);
/// False and `out` untouched when `name` is no grouping.
bool from_string(std::string_view name, Grouping* out);

/// Rows per block mean.
inline constexpr int kGroupRows = 128;

/// Decisions about an order (is it worth keeping?) look at every watch_stride-th block of a
/// segment, from its first on: 64 to 127 of them, all of fewer than 128.
constexpr int32_t watch_stride(int32_t blocks) { return blocks < 128 ? 1 : blocks / 64; }

/// A token range in the original order. `kind`: 0 video, 1 text (2, padding, never gets here).
struct Segment {
  int64_t begin = 0;
  int64_t len = 0;
  int kind = 0;
};

/// The V rows of one (batch, kv head).
struct GroupingInput {
  int64_t n_tokens = 0;  ///< tokens in the original order, valid or not
  int head_dim = 0;      ///< 1..128
  /// Writes the head_dim values of one token. Must be callable from the calling thread at any time.
  std::function<void(int64_t token, float* out)> row;
  /// Valid token indices of each segment, ascending, masked and padded tokens already removed.
  std::vector<std::vector<int64_t>> valid_by_segment;
  /// t, h, w of the video grid, or zeros. Only `cubes` looks at it.
  std::array<int64_t, 3> grid{0, 0, 0};
  /// Where the segments lie; same length as valid_by_segment, or empty: one video segment of
  /// n_tokens. Only `cubes` looks at it.
  std::vector<Segment> segments;
};

/// Constants of the specification. Changing a default changes SPEC_VERSION.
struct GroupingParams {
  Grouping kind = Grouping::automatic;
  /// The next step groups this head again, by a warm start that goes on with the exchanges.
  bool followed = false;
  int pair_passes = 8;           ///< pair exchanges after a cold kdtree or vsmooth
  int followed_pair_passes = 4;  ///< the same where `followed`
  int warm_pair_passes = 2;      ///< the same after a warm start
  int pair_rounds = 16;          ///< handshake rounds in one pass
  int pair_memory = 6;           ///< passes in which a tried partner is not tried again
  int pair_inner = 3;            ///< splits of one merged pair
  int sigma_sample_rows = 2048;
  int axes_sample_rows = 2048;
  int axes_iterations = 8;
  int kmeans_iterations = 5;         ///< `kmeans`: over all tokens
  int vsmooth_iterations = 5;        ///< `vsmooth`: over the sample
  int vsmooth_large_iterations = 3;  ///< the same where the sample has more than sample_min rows
  int vsmooth_sample_min = 4096;     ///< sample rows = min(n, max(this, ceil(n / divisor)))
  int vsmooth_sample_divisor = 8;    ///< see above
  int balanced_iterations = 6;
  /// A warm start keeps the order of last time while its f_g, of the watched blocks, is at least
  /// this share of what it was.
  double warm_share = 0.75;
};

/// What one head carries from step to step.
struct HeadState {
  Grouping used = Grouping::identity;  ///< `vsmooth` for `auto`; the requested kind otherwise
  int head_dim = 0;
  double f_watched = 0.0;  ///< f_g of the watched blocks at the last grouping
  int64_t step = -1;       ///< of the last grouping; written by the caller, -1 = never
  /// Token indices of each segment in group order.
  std::vector<std::vector<int64_t>> order_by_segment;

  /// Versioned little-endian blob with a checksum.
  std::vector<uint8_t> serialise() const;
  /// False (and `out` untouched) on a wrong magic, version, length or checksum.
  static bool deserialise(std::span<const uint8_t> blob, HeadState* out);
};

struct GroupingResult {
  /// Permutation of each segment's valid tokens; block j of a segment is entries [128j, 128j+128).
  std::vector<std::vector<int64_t>> order_by_segment;
  double f_g = 0.0;        ///< energy removed by the block means, on the INT8 tokens
  double f_watched = 0.0;  ///< f_g of the watched blocks only: what decisions compare
  Grouping used = Grouping::identity;
  HeadState state;
};

/// Groups one head. `warm` (nullable) is used only when it fits: same head_dim, same valid tokens,
/// a kind that `params` allows, and an order that still removes params.warm_share of what it did;
/// otherwise the start is cold. Thread safe.
GroupingResult group_head(const GroupingInput& input, const GroupingParams& params,
                          const HeadState* warm);

struct OrderShares {
  double f_g = 0.0, f_watched = 0.0;
};

/// f_g of a given order of this input, and of its watched blocks: sum over blocks ||sum x||^2 / n
/// over sum ||x||^2, on the INT8 tokens; 0 when all tokens are zero. Throws std::invalid_argument
/// when an order is no permutation of its segment's valid tokens.
OrderShares shares_of_order(const GroupingInput& input, const GroupingParams& params,
                            const std::vector<std::vector<int64_t>>& order_by_segment);
double f_g_of_order(const GroupingInput& input, const GroupingParams& params,
                    const std::vector<std::vector<int64_t>>& order_by_segment);

/// Whether a head should be regrouped, from f_g of the watched blocks.
inline bool decayed(double f_now, double f_at_last, double threshold = 0.9) {
  return f_now < threshold * f_at_last;
}

}  // namespace vca::spec
