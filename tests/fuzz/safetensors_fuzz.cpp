// SPDX-License-Identifier: Apache-2.0
// The safetensors reader: any bytes as a file. Every tensor it admits must be readable to its end.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/fuzz/fuzz.hpp"
#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/safetensors.hpp"

namespace {

// One file in memory for the whole run.
int memory_file() {
  static const int fd = [] {
    const int f = memfd_create("fuzz", MFD_CLOEXEC);
    if (f < 0) std::abort();
    return f;
  }();
  return fd;
}

void read_everything(const vca::tools::SafetensorsFile& file) {
  volatile uint8_t sink = 0;
  for (const vca::tools::TensorInfo& t : file.tensors()) {
    if (file.find(t.name) == nullptr) std::abort();  // what is listed can be found
    if (t.elements() < 0 || t.begin > t.end) std::abort();
    const auto* data = static_cast<const uint8_t*>(file.data(t));
    for (uint64_t i = 0; i < t.end - t.begin; ++i) sink = sink ^ data[i];
    if (const auto dtype = vca::tools::dtype_from_safetensors(t.dtype))
      vca::tools::first_non_finite(data, *dtype, t.elements());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = memory_file();
  if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  try {
    const vca::tools::SafetensorsFile file("/proc/self/fd/" + std::to_string(fd));
    read_everything(file);
  } catch (const vca::tools::UserError&) {
    // refused with a message: right
  }
  return 0;
}

std::vector<std::vector<uint8_t>> vca::fuzz::seeds() {
  std::vector<std::vector<uint8_t>> out;
  for (
      const char* header :
      {R"({"q":{"dtype":"F32","shape":[1,1,2,4],"data_offsets":[0,32]}})",
       R"({"__metadata__":{"a":"b","grid":"1,2,3"},"k":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"v":{"dtype":"F16","shape":[],"data_offsets":[12,14]}})",
       R"({"q":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}, "\u0041\n":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
       R"({})"}) {
    const uint64_t n = std::strlen(header);
    std::vector<uint8_t> file(8);
    std::memcpy(file.data(), &n, 8);
    file.insert(file.end(), header, header + n);
    const size_t data_bytes[] = {32, 14, 3, 0};
    file.resize(file.size() + data_bytes[out.size()], 0x3F);
    out.push_back(file);
  }
  return out;
}
