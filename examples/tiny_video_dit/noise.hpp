// SPDX-License-Identifier: Apache-2.0
// Counter-based normal noise (MODEL.md section 7): element j of seed s can be computed alone, so a
// clip starts from the same noise whatever the number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace tiny_video_dit {

// Philox4x32-10 of one block counter under a 64-bit seed.
std::array<uint32_t, 4> philox_words(uint64_t seed, uint64_t block);

// Fills out with the standard normals [first, first + out.size()) of the seed.
void fill_normals(uint64_t seed, uint64_t first, std::span<float> out);

}  // namespace tiny_video_dit
