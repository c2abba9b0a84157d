// SPDX-License-Identifier: Apache-2.0
// `vcattn info`: versions, machine, and which kernel would run here.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tools/vcattn/commands.hpp"
#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/machine.hpp"
#include "vca/vca.h"

namespace vca::tools {
namespace {

// The instruction sets that decide which unit of the CPU backend may run.
std::string instruction_sets() {
  std::string text;
#if defined(__x86_64__)
  const auto add = [&text](bool has, const char* name) {
    if (has) text += (text.empty() ? "" : " ") + std::string(name);
  };
  __builtin_cpu_init();
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512vl"), "avx512vl");
  add(__builtin_cpu_supports("avx512dq"), "avx512dq");
  add(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
#endif
  return text.empty() ? "none beyond the baseline" : text;
}

// What the driver tells without CUDA being linked.
std::vector<std::string> nvidia_devices() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    std::ifstream information(entry.path() / "information");
    std::string line;
    while (std::getline(information, line)) {
      if (line.rfind("Model:", 0) != 0) continue;
      const size_t start = line.find_first_not_of(" \t", 6);
      if (start != std::string::npos) names.push_back(line.substr(start));
    }
  }
  return names;
}

// One head of 1,024 tokens: small, and every kernel's ordinary case.
struct DefaultProblem {
  static constexpr int64_t kTokens = 1024, kDim = 128;
  std::vector<uint16_t> q, k, v, o;
  vca_attn_desc desc = {};

  DefaultProblem() : q(kTokens * kDim), k(q), v(q), o(q) {
    desc.struct_size = sizeof desc;
    desc.q = tensor(q);
    desc.k = tensor(k);
    desc.v = tensor(v);
    desc.o = tensor(o);
    desc.device = VCA_DEVICE_CPU;
  }

  static vca_tensor tensor(std::vector<uint16_t>& data) {
    vca_tensor t = {};
    t.data = data.data();
    t.dtype = VCA_BF16;
    const int64_t shape[4] = {1, 1, kTokens, kDim};
    const int64_t stride[4] = {kTokens * kDim, kTokens * kDim, kDim, 1};
    for (size_t i = 0; i < 4; ++i) {
      t.shape[i] = shape[i];
      t.stride[i] = stride[i];
    }
    return t;
  }
};

std::string explain(const vca_attn_desc& desc) {
  size_t needed = 0;
  std::vector<char> text(1);
  if (vca_attn_explain(&desc, text.data(), text.size(), &needed) != VCA_OK) return vca_last_error();
  text.resize(needed + 1);
  if (vca_attn_explain(&desc, text.data(), text.size(), &needed) != VCA_OK) return vca_last_error();
  return text.data();
}

void print_indented(const std::string& text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::printf("  %s\n", text.substr(at, end - at).c_str());
    at = end + 1;
  }
}

int run() {
  std::printf("vcattn         %s\n", vca_version());
  std::printf("specification  %d\n", vca_spec_version());
  std::printf("CPU            %s, %u threads\n", cpu_model().c_str(),
              std::thread::hardware_concurrency());
  std::printf("instructions   %s\n", instruction_sets().c_str());
  const std::vector<std::string> devices = nvidia_devices();
  if (devices.empty()) std::printf("GPU            none found\n");
  for (const std::string& name : devices) std::printf("GPU            %s\n", name.c_str());

  const DefaultProblem problem;
  vca_attn_info info = {};
  info.struct_size = sizeof info;
  std::printf("\none head, 1,024 tokens, head_dim 128, BF16, recipe auto, on the CPU:\n");
  if (vca_attn_query(&problem.desc, &info) == VCA_OK) {
    std::printf("  kernel     %s (%s)\n  recipe     %s\n  grouping   %s\n  target     %s\n",
                info.kernel, info.evidence, vca_recipe_str(info.recipe),
                vca_grouping_str(info.grouping), vca_target_str(info.target));
    std::printf("  schedule   %s\n  arithmetic %s\n  workspace  %zu bytes\n", info.schedule,
                info.mma_model, info.workspace_bytes);
  } else {
    print_indented(vca_last_error());
  }
  std::printf("\ncandidates:\n");
  print_indented(explain(problem.desc));
  return kExitOk;
}

}  // namespace

void add_info(CLI::App& app, Commands& commands) {
  CLI::App* sub = app.add_subcommand(
      "info", "Versions, machine, and which kernel would run and why not others");
  commands.push_back({sub, run});
}

}  // namespace vca::tools
