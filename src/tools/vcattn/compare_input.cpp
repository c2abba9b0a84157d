// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/compare_input.hpp"

#include <string>

#include "tools/vcattn/errors.hpp"

namespace vca::tools {
namespace {

using Extents = std::array<int64_t, 4>;  // B, H, S, D

const char* layout_text(Layout layout) {
  return layout == Layout::hnd ? "[B, H, S, D]" : "[B, S, H, D]";
}

std::string text(const CompareInput& in, const char* name) {
  return std::string(name) + " " + shape_text(in.file.find(name)->shape);
}

spec::TensorView view_of(const SafetensorsFile& file, const char* name, Layout layout) {
  const TensorInfo& tensor = file.require(name);
  if (tensor.shape.size() != 4) {
    throw UserError(file.path().string() + ": tensor " + name + " does not have four dimensions",
                    shape_text(tensor.shape), layout_text(layout),
                    "add a batch dimension of 1 if it is missing");
  }
  spec::TensorView view;
  view.data = file.data(tensor);
  view.dtype = *dtype_from_safetensors(tensor.dtype);
  const auto& s = tensor.shape;
  if (layout == Layout::hnd) {
    view.shape = {s[0], s[1], s[2], s[3]};
    view.stride = {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
  } else {
    view.shape = {s[0], s[2], s[1], s[3]};
    view.stride = {s[1] * s[2] * s[3], s[3], s[2] * s[3], 1};
  }
  return view;
}

void check_finite(const CompareInput& in, const char* name) {
  const TensorInfo& tensor = in.file.require(name);
  const spec::DType dtype = *dtype_from_safetensors(tensor.dtype);
  const void* data = in.file.data(tensor);
  int64_t at = first_non_finite(data, dtype, tensor.elements());
  if (at < 0) return;
  spec::TensorView one;
  one.data = data;
  one.dtype = dtype;
  one.shape = {1, 1, 1, 1};
  one.stride = {0, 0, 1, 1};
  float value = 0;
  one.load_row(0, 0, at, &value);
  std::vector<int64_t> index(4);
  for (size_t axis = 4; axis-- > 0;) {
    index[axis] = at % tensor.shape[axis];
    at /= tensor.shape[axis];
  }
  throw UserError(in.file.path().string() + ": tensor " + name + " is not finite",
                  (value != value ? "NaN at " : "Inf at ") + shape_text(index) + " of " +
                      layout_text(in.layout),
                  "finite values only",
                  "dump the tensors before the step in which the model overflows");
}

void check_shapes(const CompareInput& in) {
  const Extents &q = in.q.shape, &k = in.k.shape, &v = in.v.shape;
  const std::string file = in.file.path().string() + ": ";
  const std::string all = text(in, "q") + ", " + text(in, "k") + ", " + text(in, "v");
  const std::string layout_hint =
      in.layout == Layout::hnd ? "for [B, S, H, D] tensors say --layout NHD" : "";
  if (in.q.dtype != in.k.dtype || in.q.dtype != in.v.dtype) {
    throw UserError(file + "q, k and v have different dtypes",
                    in.file.find("q")->dtype + ", " + in.file.find("k")->dtype + ", " +
                        in.file.find("v")->dtype,
                    "one of BF16, F16, F32 for all three", "convert them to one dtype");
  }
  if (q[3] < 1 || q[3] > spec::kMaxHeadDim) {
    throw UserError(file + "the head dimension is not supported", all,
                    "a last dimension of 1 to 128", "");
  }
  if (k != v) {
    throw UserError(file + "k and v have different shapes", all, "equal shapes",
                    k[3] != v[3] ? "a value dimension of its own is not supported" : layout_hint);
  }
  if (q[3] != k[3]) {
    throw UserError(file + "q and k have different head dimensions", all, "equal last dimensions",
                    layout_hint);
  }
  if (q[0] != k[0]) {
    throw UserError(file + "q and k have different batch sizes", all, "equal first dimensions", "");
  }
  if (q[1] < 1 || k[1] < 1 || q[1] % k[1] != 0) {
    throw UserError(file + "the number of query heads is not a multiple of the key heads", all,
                    "heads of q = 1, 2, 3, ... times heads of k and v", layout_hint);
  }
  // Token indices are 32 bit in the operands.
  if (q[2] > INT32_MAX || k[2] > INT32_MAX) {
    throw UserError(file + "too many tokens", all, "at most 2^31 - 1 tokens", layout_hint);
  }
}

}  // namespace

CompareInput load_compare_input(const std::filesystem::path& path, Layout layout) {
  CompareInput in{SafetensorsFile(path), layout, {}, {}, {}, 0, 0, 0, 0, 0, 0};
  in.q = view_of(in.file, "q", layout);
  in.k = view_of(in.file, "k", layout);
  in.v = view_of(in.file, "v", layout);
  check_shapes(in);
  for (const char* name : {"q", "k", "v"}) check_finite(in, name);
  in.batches = in.q.shape[0];
  in.heads_q = in.q.shape[1];
  in.heads_kv = in.k.shape[1];
  in.tokens_q = in.q.shape[2];
  in.tokens_kv = in.k.shape[2];
  in.head_dim = static_cast<int>(in.q.shape[3]);
  return in;
}

}  // namespace vca::tools
