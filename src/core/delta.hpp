// SPDX-License-Identifier: Apache-2.0
// Scores of the query means (recipes with q means, docs/numerics.md B13). A matrix of one FP32 a
// column for every 128 queries: 179 MB for a head of 75,600 tokens. So they are made a chunk of
// heads (or of a head's query blocks) at a time, under a cap on memory.
#pragma once

#include <cstdint>
#include <vector>

namespace vca::core {

// The environment variable VCATTN_DELTA_MIB in bytes; 256 MiB without it.
int64_t delta_cap_bytes();

// Ends of the chunks of a list of rows whose sizes are `row_bytes`: as many rows as fit the cap,
// one at least. Their order and values do not depend on the cap.
std::vector<int64_t> delta_chunk_ends(const std::vector<int64_t>& row_bytes, int64_t cap_bytes);

}  // namespace vca::core
