// SPDX-License-Identifier: Apache-2.0
// The C ABI on device tensors of a Hopper GPU: O of sampled rows against vca_ref_attn with target
// sm90 and token order, bit for bit in the output type; LSE within its rounding; outputs and
// workspace poisoned, with guards; inputs unchanged; twenty runs, two streams and a replayed graph
// with new data bitwise equal; the current device untouched. One line a case; exit code 1 on a
// difference, 2 without a device.
#include "device/capi_compare.hpp"

namespace {

using namespace vca::tests;

bool all_ok = true;

void report(const std::string& name, const std::string& bad, const std::string& detail = "") {
  std::printf("%s: %s%s%s\n", name.c_str(), bad.empty() ? "equal" : bad.c_str(),
              detail.empty() ? "" : ", ", detail.c_str());
  std::fflush(stdout);
  if (!bad.empty()) all_ok = false;
}

std::string finish(const char* what, vca_status status) {
  if (status != VCA_OK) return std::string(what) + ": " + status_text(status);
  check(cudaDeviceSynchronize(), what);
  return "";
}

std::string energy_of(const Problem& p) {
  const auto heads = static_cast<size_t>(p.c.b * p.c.h_kv);
  std::vector<float> want(heads), got(heads);
  std::vector<uint8_t> o(p.o_bytes()), regrouped(heads, 1);
  vca_attn_desc desc = p.host;
  desc.o.data = o.data();
  desc.energy_removed = want.data();
  if (vca_attn_run(&desc, nullptr, 0, nullptr) != VCA_OK) return status_text(VCA_ERR_INTERNAL);
  std::memcpy(got.data(), p.energy->download().data(), heads * 4);
  if (std::memcmp(got.data(), want.data(), heads * 4) != 0) return "energy_removed DIFFERS";
  if (p.regrouped->download() != std::vector<uint8_t>(heads, 0)) return "regrouped is not 0";
  return "";
}

void run_case(const Case& c, uint64_t seed) {
  const Problem p(c, seed);
  int before = -1, after = -2;
  check(cudaGetDevice(&before), "cudaGetDevice");
  std::string bad = finish("run", p.run(nullptr));
  check(cudaGetDevice(&after), "cudaGetDevice");
  if (after != before) bad = "the current device changed";
  const std::vector<uint8_t> o = p.o->download(), lse = p.lse->download();
  Comparison comparison(p, o, lse);
  if (bad.empty()) bad = comparison.run();
  if (bad.empty() && c.energy) bad = energy_of(p);
  char name[160];
  std::snprintf(name, sizeof name, "%s %s b%lld h%lld/%lld s%lld/%lld d%d type %d to %d",
                vca_recipe_str(c.recipe), c.name, static_cast<long long>(c.b),
                static_cast<long long>(c.h_q), static_cast<long long>(c.h_kv),
                static_cast<long long>(c.s_q), static_cast<long long>(c.s_kv), c.d, c.dtype,
                c.o_dtype);
  report(name, bad, comparison.detail());
}

std::vector<Case> cases() {
  std::vector<Case> out;
  const int32_t recipes[3] = {VCA_RECIPE_VC8, VCA_RECIPE_VC8_TURBO, VCA_RECIPE_VC8_PAPER};
  int32_t turn = 0;
  for (const int32_t recipe : recipes)
    for (const int d : {128, 64, 80, 1}) {
      const int32_t type = turn++ % 3;
      Case c{.name = "cross, GQA", .recipe = recipe, .dtype = type, .o_dtype = (type + 1) % 3};
      c.b = 2, c.h_q = 4, c.h_kv = 2, c.s_q = 200, c.s_kv = 1301, c.d = d;
      out.push_back(c);
    }
  const char* const names[5] = {"HND", "NHD", "fused QKV", "batch stride 0", "head stride 0"};
  for (int i = 0; i < 5; ++i)
    for (int32_t type = 0; type < 3; ++type) {
      Case c{.name = names[i], .recipe = recipes[i % 3], .dtype = type, .o_dtype = type};
      c.b = 2, c.h_q = c.h_kv = 3, c.s_q = c.s_kv = 150, c.d = 72;
      c.memory = static_cast<Memory>(i);
      out.push_back(c);
    }
  for (const int32_t recipe : recipes) {
    Case c{.name = "key lengths", .recipe = recipe, .lens = true, .energy = true};
    c.b = 3, c.h_q = 2, c.h_kv = 1, c.s_q = 300, c.s_kv = 2500;
    out.push_back(c);
    c.name = "key mask", c.lens = false, c.mask = true;
    out.push_back(c);
    c.name = "text, padding, lengths, mask", c.lens = true, c.split = Split::text_and_padding;
    out.push_back(c);
    c.name = "sequences", c.lens = c.energy = false, c.split = Split::sequences;
    c.s_q = c.s_kv = 1000;
    out.push_back(c);
    c.name = "RoPE by grid, no LSE", c.split = Split::one, c.rope = RopeKind::grid, c.lse = false;
    out.push_back(c);
    c.name = "RoPE by tables", c.rope = RopeKind::tables, c.lse = true, c.d = 96;
    out.push_back(c);
  }
  for (const int64_t s : {1, 127, 128, 129, 1025}) {
    Case c{.name = "length", .recipe = recipes[s % 3], .energy = true};
    c.h_q = 8, c.h_kv = 1, c.s_q = c.s_kv = s, c.d = 64;
    out.push_back(c);
  }
  Case c{.name = "negative scale", .scale = -0.11};
  c.h_q = c.h_kv = 2, c.s_q = c.s_kv = 257;
  out.push_back(c);
  c.name = "scale 0", c.scale = 0.0;
  out.push_back(c);
  c = {.name = "fused QKV, token stride 21504", .memory = Memory::fused_qkv};
  c.h_q = c.h_kv = 56, c.s_q = c.s_kv = 300;
  out.push_back(c);
  c = {.name = "66,000 heads"};
  c.b = 300, c.h_q = c.h_kv = 220, c.s_q = 3, c.s_kv = 5, c.d = 16;
  out.push_back(c);
  c = {.name = "no keys", .energy = true};
  c.b = 2, c.h_q = c.h_kv = 2, c.s_q = 130, c.s_kv = 0;
  out.push_back(c);
  c.name = "no queries", c.s_q = 0, c.s_kv = 9;
  out.push_back(c);
  c.name = "no batch", c.b = 0, c.s_q = 5, c.energy = false;
  out.push_back(c);
  return out;
}

Case middle() {
  Case c{.name = "middle", .lens = true};
  c.b = 2, c.h_q = 6, c.h_kv = 3, c.s_q = 700, c.s_kv = 1900;
  return c;
}

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  return stream;
}

// The first call of the process is a captured one: nothing has been loaded or set before.
void run_graph() {
  Problem p(middle(), 11);
  cudaStream_t stream = make_stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  std::string bad = status_text(p.run(stream));
  const cudaError_t captured = cudaStreamEndCapture(stream, &graph);
  if (!bad.empty()) {
    report("graph capture", bad);
    return;
  }
  check(captured, "end of capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  for (uint64_t replay = 0; replay < 5 && bad.empty(); ++replay) {
    p.make_inputs(100 + replay);
    p.lens[1] = static_cast<int32_t>(400 * replay);  // 0 keys first
    p.upload_inputs();
    p.poison(kPoison);
    check(cudaDeviceSynchronize(), "upload");
    check(cudaGraphLaunch(exec, stream), "graph");
    check(cudaStreamSynchronize(stream), "graph");
    const std::vector<uint8_t> o = p.o->download(), lse = p.lse->download();
    Comparison comparison(p, o, lse);
    bad = comparison.run();
    report("graph replay " + std::to_string(replay + 1) + " with new data", bad,
           comparison.detail());
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

void run_repeats() {
  const Problem p(middle(), 12);
  std::string bad = finish("run", p.run(nullptr));
  const std::vector<uint8_t> o = p.o->download(), lse = p.lse->download();
  for (int i = 0; i < 20 && bad.empty(); ++i) {
    p.workspace->fill(i * 13);
    p.o->fill(kPoison);
    p.lse->fill(kPoison);
    bad = finish("run", p.run(nullptr));
    if (bad.empty() && (p.o->download() != o || p.lse->download() != lse))
      bad = "run " + std::to_string(i) + " DIFFERS";
  }
  report("20 runs, each on another workspace poison", bad);

  p.poison(kPoison);
  bad = finish("prepare",
               vca_attn_prepare(&p.device, p.workspace->data(), p.workspace_bytes, nullptr));
  for (int i = 0; i < 3; ++i) p.inputs[i]->fill(0x7F);
  if (bad.empty())
    bad = finish("attend",
                 vca_attn_attend(&p.device, p.workspace->data(), p.workspace_bytes, nullptr));
  if (bad.empty() && (p.o->download() != o || p.lse->download() != lse)) bad = "DIFFERS";
  report("prepare, inputs overwritten, attend", bad);
}

void run_streams() {
  Case other = middle();
  other.recipe = VCA_RECIPE_VC8_TURBO;
  const Problem a(middle(), 13), b(other, 14);
  std::string bad = finish("run", a.run(nullptr));
  if (bad.empty()) bad = finish("run", b.run(nullptr));
  const std::vector<uint8_t> want_a = a.o->download(), want_b = b.o->download();
  const cudaStream_t one = make_stream(), two = make_stream();
  a.poison(kPoison);
  b.poison(kPoison);
  check(cudaDeviceSynchronize(), "poison");
  for (int i = 0; i < 10 && bad.empty(); ++i) {
    bad = status_text(a.run(one));
    if (bad.empty()) bad = status_text(b.run(two));
  }
  if (bad.empty()) bad = finish("streams", VCA_OK);
  if (bad.empty() && (a.o->download() != want_a || b.o->download() != want_b)) bad = "DIFFER";
  report("two streams at once", bad);
  cudaStreamDestroy(one);
  cudaStreamDestroy(two);
}

// Heads more than 2^31 elements apart, copied from a compact problem.
void run_far_apart() {
  Case c{.name = "far apart"};
  c.h_q = c.h_kv = 2, c.s_q = c.s_kv = 300;
  const Problem p(c, 15);
  std::string bad = finish("run", p.run(nullptr));
  const int64_t pitch = (int64_t{1} << 31) + 64, head = c.s_q * c.d;
  const DeviceBytes memory(static_cast<size_t>(pitch + 4 * head) * 2);
  vca_attn_desc far = p.device;
  vca_tensor* const to[3] = {&far.q, &far.k, &far.v};
  for (int64_t i = 0; i < 3; ++i) {
    to[i]->data = memory.data() + i * head * 2;
    to[i]->stride[1] = pitch;
    for (int64_t h = 0; h < 2; ++h)
      check(
          cudaMemcpy(memory.data() + (i * head + h * pitch) * 2, p.inputs[i]->data() + h * head * 2,
                     static_cast<size_t>(head) * 2, cudaMemcpyDeviceToDevice),
          "copy");
  }
  far.o = tensor(c.o_dtype, 1, 2, c.s_q, c.d, false);
  far.o.data = memory.data() + 3 * head * 2;
  far.o.stride[1] = pitch;
  if (bad.empty())
    bad = finish("run", vca_attn_run(&far, p.workspace->data(), p.workspace_bytes, nullptr));
  const std::vector<uint8_t> near = p.o->download();
  std::vector<uint8_t> row(static_cast<size_t>(c.d) * 2);
  for (int64_t i = 0; i < 2 * c.s_q && bad.empty(); ++i) {
    const int64_t h = i / c.s_q, s = i % c.s_q;
    check(cudaMemcpy(row.data(), memory.data() + (3 * head + h * pitch + s * c.d) * 2, row.size(),
                     cudaMemcpyDeviceToHost),
          "copy out");
    const int64_t* t = p.host.o.stride;
    if (std::memcmp(row.data(), near.data() + (h * t[1] + s * t[2]) * 2, row.size()) != 0)
      bad = "row " + std::to_string(i) + " DIFFERS";
  }
  report("heads 2^31 + 64 elements apart", bad);
}

// Another device current: the call finds its own and leaves the current one.
void run_other_device() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "devices");
  if (devices < 2) {
    std::printf("second device: skipped, this machine has one\n");
    return;
  }
  const Problem p(middle(), 16);
  std::string bad = finish("run", p.run(nullptr));
  const std::vector<uint8_t> want = p.o->download();
  p.poison(kPoison);
  const cudaStream_t stream = make_stream();
  check(cudaDeviceSynchronize(), "poison");
  check(cudaSetDevice(1), "cudaSetDevice");
  if (bad.empty()) bad = status_text(p.run(stream));
  int now = -1;
  check(cudaGetDevice(&now), "cudaGetDevice");
  if (bad.empty() && now != 1) bad = "the current device changed";
  check(cudaSetDevice(0), "cudaSetDevice");
  if (bad.empty()) bad = finish("run", VCA_OK);
  if (bad.empty() && p.o->download() != want) bad = "DIFFERS";
  report("second device current", bad);
  cudaStreamDestroy(stream);
}

void expect(const char* name, vca_status got, vca_status want, const char* word) {
  const std::string text = vca_last_error();
  report(std::string("refusal, ") + name,
         got == want && text.find(word) != std::string::npos
             ? ""
             : std::string("WRONG: ") + vca_status_str(got) + ", " + text);
}

void run_surface() {
  Case c = middle();
  const Problem p(c, 17);
  vca_attn_desc d = p.device;
  d.grouping = VCA_GROUPING_DEFAULT;
  char text[4096] = "";
  vca_attn_info info{};
  info.struct_size = sizeof info;
  const vca_status status = vca_attn_query(&d, &info);
  std::string bad = status_text(status);
  if (bad.empty()) bad = status_text(vca_attn_explain(&d, text, sizeof text, nullptr));
  const auto says = [&text](const char* word) { return std::strstr(text, word) != nullptr; };
  if (bad.empty() &&
      !(says("sm90: chosen; grouping auto: not on sm_90 in this version, identity runs") &&
        info.grouping == VCA_GROUPING_IDENTITY && info.target == VCA_TARGET_SM90 &&
        std::strstr(info.schedule, "identity runs") != nullptr &&
        std::strcmp(info.kernel, "sm90") == 0 && info.workspace_bytes == p.workspace_bytes &&
        info.state_bytes == 0))
    bad = std::string("WRONG: ") + text;
  report("query and explain", bad);
  uint8_t* const workspace = p.workspace->data();
  expect("workspace NULL", vca_attn_run(&d, nullptr, 0, nullptr), VCA_ERR_WORKSPACE, "NULL");
  expect("workspace too small", vca_attn_run(&d, workspace, p.workspace_bytes - 1, nullptr),
         VCA_ERR_WORKSPACE, "too small");
  expect("workspace misaligned", vca_attn_run(&d, workspace + 64, p.workspace_bytes, nullptr),
         VCA_ERR_WORKSPACE, "256-byte");
  expect("workspace over q", vca_attn_run(&d, d.q.data, p.workspace_bytes, nullptr),
         VCA_ERR_INVALID_ARGUMENT, "overlaps q");
  int device = 0, pageable = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, device), "attribute");
  if (pageable == 0) {
    d.q = p.host.q;
    expect("host memory", vca_attn_run(&d, workspace, p.workspace_bytes, nullptr),
           VCA_ERR_INVALID_ARGUMENT, "q.data is host memory");
  }
  const std::vector<uint8_t> o = p.o->download();
  bad = "";
  for (const uint8_t byte : o)
    if (byte != kPoison) bad = "a refused call wrote its output";
  report("refused calls write nothing", bad);
}

}  // namespace

int main() {
  cudaDeviceProp properties{};
  int driver = 0;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9) {
    std::printf("needs a GPU of compute capability 9.0\n");
    return 2;
  }
  cudaDriverGetVersion(&driver);
  std::printf("%s, driver API %d, vcattn %s\n", properties.name, driver, vca_version());
  run_graph();
  uint64_t seed = 1000;
  for (const Case& c : cases()) run_case(c, seed++);
  run_repeats();
  run_streams();
  run_far_apart();
  run_other_device();
  run_surface();
  std::printf(all_ok ? "all equal\n" : "differences\n");
  return all_ok ? 0 : 1;
}
