// SPDX-License-Identifier: Apache-2.0
// vca_group_state_load with any blob: it is refused and the state keeps its bytes, or the state can
// be used. The first byte says whether the checksums inside are made right first, so that mutations
// get past them.
#include <cstdlib>

#include "core/hash.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "vca/vca.h"

namespace {

constexpr int64_t kTokens = 130;  // two blocks
constexpr int kDim = 4;

// One small problem with a state.
struct Problem {
  std::vector<float> q, k, v, o;
  std::vector<uint64_t> state;  // 8-byte aligned
  int32_t step = 0;
  vca_attn_desc desc;

  Problem() : desc(vca_attn_desc_init()) {
    const size_t n = kTokens * kDim;
    q.resize(n);
    k.resize(n);
    v.resize(n);
    o.resize(n);
    for (size_t i = 0; i < n; ++i) {
      q[i] = static_cast<float>(i % 7) - 3.0f;
      k[i] = static_cast<float>(i * 5 % 11) - 5.0f;
      v[i] = static_cast<float>(i * i % 13) - 6.0f;
    }
    const auto view = [](std::vector<float>& x) {
      return vca_tensor{
          x.data(), VCA_FP32, 0, {1, 1, kTokens, kDim}, {kTokens * kDim, kTokens * kDim, kDim, 1}};
    };
    desc.q = view(q);
    desc.k = view(k);
    desc.v = view(v);
    desc.o = view(o);
    desc.num_threads = 1;
    size_t bytes = 0;
    if (vca_group_state_bytes(&desc, &bytes) != VCA_OK) std::abort();
    state.resize((bytes + 7) / 8);
    if (vca_group_state_init(&desc, state.data(), bytes, nullptr) != VCA_OK) std::abort();
    state_bytes = bytes;
    desc.state = state.data();
    desc.step = &step;
  }
  size_t state_bytes = 0;
};

std::vector<uint8_t> saved(Problem& p) {
  size_t bytes = 0;
  if (vca_group_state_save(p.state.data(), p.state_bytes, nullptr, &bytes) != VCA_OK) std::abort();
  std::vector<uint8_t> blob(bytes);
  if (vca_group_state_save(p.state.data(), p.state_bytes, blob.data(), &bytes) != VCA_OK)
    std::abort();
  return blob;
}

void put_u64(std::vector<uint8_t>& x, size_t at, uint64_t value) {
  for (size_t i = 0; i < 8; ++i) x[at + i] = static_cast<uint8_t>(value >> (8 * i));
}

// FNV-1a of spec::HeadState.
uint64_t fnv1a(const uint8_t* data, size_t n) {
  uint64_t h = 0xCBF29CE484222325u;
  for (size_t i = 0; i < n; ++i) h = (h ^ data[i]) * 0x100000001B3u;
  return h;
}

// Makes the checksums of a blob with one slot right: the order's own, if it is long enough to have
// one, and the blob's.
void repair(std::vector<uint8_t>& blob) {
  constexpr size_t kOrderAt = 8 + 3 * 8 + 4 * 8;  // magic, three words, the slot's four
  if (blob.size() >= kOrderAt + 16) {
    const size_t end = blob.size() - 8;
    put_u64(blob, end - 8, fnv1a(blob.data() + kOrderAt, end - 8 - kOrderAt));
    put_u64(blob, kOrderAt - 8, end - kOrderAt);
  }
  if (blob.size() >= 8) {
    vca::core::Hash h;
    h.add_bytes(blob.data(), blob.size() - 8);
    put_u64(blob, blob.size() - 8, h.value());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Problem& p = *new Problem;
  if (size == 0) return 0;
  std::vector<uint8_t> blob(data + 1, data + size);
  if (data[0] % 2 != 0) repair(blob);
  const std::vector<uint64_t> before = p.state;
  const vca_status status = vca_group_state_load(&p.desc, p.state.data(), p.state_bytes,
                                                 blob.empty() ? nullptr : blob.data(), blob.size());
  if (status != VCA_OK) {
    if (p.state != before) std::abort();
    return 0;
  }
  // Saving gives back what was loaded.
  std::vector<uint8_t> again = saved(p);
  if (again != blob) std::abort();
  // Whatever order it holds, a call must be safe with it and write only what a call writes. One in
  // eight: a call takes a thousand times as long as a load.
  if (data[0] / 32 != 7) {
    p.state = before;
    return 0;
  }
  p.step = data[0] / 2 % 4;
  const vca_status ran = vca_attn_run(&p.desc, nullptr, 0, nullptr);
  if (ran != VCA_OK && ran != VCA_ERR_STATE) std::abort();
  for (const float x : p.o)
    if (ran == VCA_OK && !(x >= -7.0f && x <= 7.0f)) std::abort();  // means of values in [-6, 6]
  p.state = before;
  return 0;
}

std::vector<std::vector<uint8_t>> vca::fuzz::seeds() {
  Problem p;
  std::vector<std::vector<uint8_t>> out;
  const auto add = [&](uint8_t first) {
    std::vector<uint8_t> input = saved(p);
    input.insert(input.begin(), first);
    out.push_back(std::move(input));
  };
  add(0);
  for (const int32_t grouping : {VCA_GROUPING_KDTREE, VCA_GROUPING_VSMOOTH, VCA_GROUPING_AUTO}) {
    p.desc.grouping = grouping;
    p.desc.grouping = VCA_GROUPING_DEFAULT;
    if (vca_attn_run(&p.desc, nullptr, 0, nullptr) != VCA_OK) std::abort();
    add(0);
    add(1);
    add(3);
    add(0xE0);
    add(0xE1);
  }
  return out;
}
