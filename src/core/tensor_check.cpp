// SPDX-License-Identifier: Apache-2.0
#include "core/tensor_check.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>

#include "core/checked.hpp"
#include "core/names.hpp"
#include "core/parallel.hpp"
#include "core/status.hpp"
#include "spec/codes.hpp"

namespace vca::core {
namespace {

constexpr const char* kAxis[4] = {"B", "H", "S", "D"};

int64_t elem_bytes(int32_t dtype) { return spec::dtype_bytes(static_cast<spec::DType>(dtype)); }

std::string field(const char* name, const char* member, int axis) {
  return std::string(name) + "." + member + "[" + std::to_string(axis) + "] (" + kAxis[axis] + ")";
}

std::string four(const int64_t* x) {
  std::string text = "{";
  for (int i = 0; i < 4; ++i) text += (i ? ", " : "") + std::to_string(x[i]);
  return text + "}";
}

// Rows of an output must not share elements: sorted by stride, each dimension must step over
// everything inside it.
void check_no_self_overlap(const char* name, const vca_tensor& t) {
  std::array<std::pair<int64_t, int64_t>, 4> dims;  // stride, size
  for (size_t i = 0; i < 4; ++i) dims[i] = {t.stride[i], t.shape[i]};
  std::sort(dims.begin(), dims.end());
  int64_t inside = 1;  // elements spanned by the dimensions so far
  for (const auto& [stride, size] : dims) {
    if (size <= 1) continue;
    if (stride < inside) {
      invalid(std::string(name) + " overlaps itself: two output elements share one address",
              "shape " + four(t.shape) + ", strides " + four(t.stride),
              "strides that give every element its own address",
              "an expanded (stride 0) or overlapping view cannot be an output; allocate a "
              "contiguous one");
    }
    inside = checked_add(checked_mul(size - 1, stride, name), inside, name);
  }
}

struct Interval {
  uintptr_t begin, end;
  bool output;
};

void append_rows(const Region& r, bool output, std::vector<Interval>& rows) {
  const auto base = reinterpret_cast<uintptr_t>(r.data);
  // Expanded dimensions repeat the same bytes: once is enough.
  int64_t size[3];
  for (int i = 0; i < 3; ++i) size[i] = r.stride_bytes[i] == 0 ? 1 : r.size[i];
  for (int64_t b = 0; b < size[0]; ++b)
    for (int64_t h = 0; h < size[1]; ++h)
      for (int64_t s = 0; s < size[2]; ++s) {
        const uintptr_t at = base + static_cast<uintptr_t>(b * r.stride_bytes[0]) +
                             static_cast<uintptr_t>(h * r.stride_bytes[1]) +
                             static_cast<uintptr_t>(s * r.stride_bytes[2]);
        rows.push_back({at, at + static_cast<uintptr_t>(r.row_bytes), output});
      }
}

bool rows_intersect(const Region& output, const Region& other) {
  std::vector<Interval> rows;
  append_rows(output, true, rows);
  append_rows(other, false, rows);
  std::sort(rows.begin(), rows.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  uintptr_t end[2] = {0, 0};  // furthest end seen, by kind
  for (const Interval& row : rows) {
    if (row.begin < end[row.output ? 0 : 1]) return true;
    end[row.output ? 1 : 0] = std::max(end[row.output ? 1 : 0], row.end);
  }
  return false;
}

}  // namespace

int64_t Region::extent_bytes() const {
  if (empty()) return 0;
  int64_t last = row_bytes;
  for (int i = 0; i < 3; ++i)
    last = checked_add(last, checked_mul(size[i] - 1, stride_bytes[i], name), name);
  return last;
}

Region region_of(const char* name, const vca_tensor& t) {
  Region r;
  r.name = name;
  r.data = t.data;
  const int64_t bytes = elem_bytes(t.dtype);
  r.row_bytes = checked_mul(t.shape[3], bytes, name);
  for (int i = 0; i < 3; ++i) {
    r.size[i] = t.shape[i];
    // The stride of a single row is never used, and may be anything.
    r.stride_bytes[i] = t.shape[i] > 1 ? checked_mul(t.stride[i], bytes, name) : 0;
  }
  return r;
}

Region region_of_array(const char* name, const void* data, int64_t elems, int64_t elem_bytes) {
  Region r;
  r.name = name;
  r.data = data;
  r.row_bytes = checked_mul(elems, elem_bytes, name);
  return r;
}

void check_tensor(const char* name, const vca_tensor& t, bool need_data, bool output) {
  const std::string n = name;
  if (dtype_name(t.dtype) == nullptr) {
    invalid(n + ".dtype is unknown", to_text(int64_t{t.dtype}),
            "VCA_BF16 (0), VCA_FP16 (1), VCA_FP32 (2)", "convert the tensor first");
  }
  if (t.reserved != 0) {
    invalid(n + ".reserved is not 0", to_text(int64_t{t.reserved}), "0",
            "zero the descriptor before filling it (vca_attn_desc_init)");
  }
  bool any = true;
  for (int i = 0; i < 4; ++i) {
    if (t.shape[i] < 0) {
      invalid(field(name, "shape", i) + " is negative", to_text(t.shape[i]), ">= 0",
              "check how the shape is read");
    }
    if (t.shape[i] == 0) any = false;
  }
  int64_t elems = 1;
  for (int i = 0; i < 4; ++i)
    if (t.shape[i] > 0) elems = checked_mul(elems, t.shape[i], (n + ".shape").c_str());
  checked_mul(elems, elem_bytes(t.dtype), (n + " in bytes").c_str());
  if (!any) return;  // without an element strides mean nothing: numpy gives zeros
  for (int i = 0; i < 4; ++i) {
    if (t.shape[i] > 1 && t.stride[i] < 0) {
      invalid(field(name, "stride", i) + " is negative", to_text(t.stride[i]), ">= 0",
              "make a contiguous copy of the reversed view");
    }
  }
  if (t.shape[3] > 1 && t.stride[3] != 1) {
    invalid(field(name, "stride", 3) + " is not 1", to_text(t.stride[3]), "1",
            "head_dim must be contiguous: make a contiguous copy");
  }
  Region whole = region_of(name, t);
  if (whole.data == nullptr) whole.data = &whole;  // never followed: only the extent is asked for
  const int64_t extent = whole.extent_bytes();
  if (t.data == nullptr) {
    if (need_data) {
      invalid(n + ".data is NULL", "NULL with shape " + four(t.shape),
              "a pointer to the first element", "set the pointer, or an extent of 0");
    }
  } else {
    const auto address = reinterpret_cast<uintptr_t>(t.data);
    const auto align = static_cast<uintptr_t>(elem_bytes(t.dtype));
    if (address % align != 0) {
      invalid(n + ".data is not aligned to its element type",
              "an address that leaves " + std::to_string(address % align) + " modulo " +
                  std::to_string(align),
              "a multiple of the element size", "copy the tensor to an aligned buffer");
    }
    if (address + static_cast<uintptr_t>(extent) < address) {
      invalid(n + " reaches beyond the address space", to_text(extent) + " bytes",
              "an extent that fits behind the pointer", "check the strides");
    }
  }
  if (output) check_no_self_overlap(name, t);
}

void check_disjoint(const Region& output, const Region& other) {
  if (output.empty() || other.empty()) return;
  const auto a = reinterpret_cast<uintptr_t>(output.data);
  const auto b = reinterpret_cast<uintptr_t>(other.data);
  const uintptr_t a_end = a + static_cast<uintptr_t>(output.extent_bytes());
  const uintptr_t b_end = b + static_cast<uintptr_t>(other.extent_bytes());
  if (a_end <= b || b_end <= a || !rows_intersect(output, other)) return;
  invalid(std::string("output ") + output.name + " overlaps " + other.name,
          "bytes shared by both views", "memory of its own",
          "allocate the output apart; vcattn never works in place");
}

void check_finite(const char* name, const spec::TensorView& view, int threads) {
  const auto& shape = view.shape;
  if (shape[3] == 0) return;
  const int64_t heads = shape[0] * shape[1];
  std::atomic<int64_t> first{INT64_MAX};  // flat logical index of the first one
  parallel_for(heads, thread_count(threads), [&](int64_t bh, int) {
    float row[spec::kMaxHeadDim];
    for (int64_t s = 0; s < shape[2]; ++s) {
      const int64_t flat = (bh * shape[2] + s) * shape[3];
      if (flat > first.load(std::memory_order_relaxed)) return;
      view.load_row(bh / shape[1], bh % shape[1], s, row);
      bool all = true;
      for (int64_t i = 0; i < shape[3]; ++i) all &= spec::is_finite(row[i]);
      if (all) continue;
      int64_t d = 0;
      while (spec::is_finite(row[d])) ++d;
      int64_t seen = first.load();
      while (flat + d < seen && !first.compare_exchange_weak(seen, flat + d)) {
      }
      return;
    }
  });
  const int64_t flat = first.load();
  if (flat == INT64_MAX) return;
  const int64_t d = flat % shape[3], s = flat / shape[3] % shape[2];
  const int64_t bh = flat / shape[3] / shape[2];
  const int64_t b = bh / shape[1], h = bh % shape[1];
  float row[spec::kMaxHeadDim];
  view.load_row(b, h, s, row);
  fail(VCA_ERR_NON_FINITE,
       {std::string(name) + " holds a value that is not finite",
        to_text(static_cast<double>(row[d])) + " at " + name + "[" + std::to_string(b) + ", " +
            std::to_string(h) + ", " + std::to_string(s) + ", " + std::to_string(d) +
            "] ([b, h, s, d])",
        "finite numbers",
        "look for the layer that made it; without VCA_CHECK_FINITE only this batch and head would "
        "be affected"});
}

}  // namespace vca::core
