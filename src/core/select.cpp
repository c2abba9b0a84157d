// SPDX-License-Identifier: Apache-2.0
#include "core/select.hpp"

#include <cstdlib>
#include <optional>
#include <string_view>

#include "core/delta.hpp"
#include "core/names.hpp"
#include "core/status.hpp"
#include "gpu/backend.hpp"

namespace vca::core {
namespace {

constexpr const char* kIsaVariable = "VCATTN_CPU_ISA";

// "cpu/avx512" to "avx512".
std::string_view short_name(cpu::Isa isa) { return std::string_view(cpu::isa_name(isa)).substr(4); }

std::optional<cpu::Isa> forced_isa() {
  const char* value = std::getenv(kIsaVariable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  for (const cpu::Isa isa : cpu::kIsas) {
    if (short_name(isa) != value) continue;
    const std::string refusal = cpu::isa_refusal(isa);
    if (refusal.empty()) return isa;
    fail(VCA_ERR_UNSUPPORTED, {std::string(kIsaVariable) + " forces a unit that cannot run here",
                               std::string(value) + ": " + refusal, "a unit this CPU has",
                               "unset the variable to let the library choose"});
  }
  invalid(std::string("the environment variable ") + kIsaVariable + " names no unit",
          "\"" + std::string(value) + "\"", "portable, avx2, avx512",
          "unset the variable to let the library choose");
}

}  // namespace

Selection select(const Request& request) {
  Selection s;
  const std::optional<cpu::Isa> forced = forced_isa();
  const bool cpu_asked = request.target == spec::Target::cpu;
  for (const cpu::Isa isa : cpu::kIsas) {
    Candidate c{cpu::isa_name(isa), cpu::isa_refusal(isa)};
    if (c.refusal.empty() && request.desc.device != VCA_DEVICE_CPU)
      c.refusal = "the tensors are on CUDA device " + std::to_string(request.desc.device);
    if (c.refusal.empty() && !cpu_asked)
      c.refusal = "target " + std::string(spec::to_string(request.target)) + " was asked for";
    if (c.refusal.empty() && forced && *forced != isa)
      c.refusal = std::string(kIsaVariable) + " forces " + std::string(short_name(*forced));
    if (c.refusal.empty() && s.chosen < 0) {
      s.chosen = static_cast<int>(s.candidates.size());
      s.isa = isa;
    }
    s.candidates.push_back(std::move(c));
  }
  Candidate sm90{"sm90", gpu::refusal(request)};
  if (sm90.refusal.empty() && s.chosen < 0) s.chosen = static_cast<int>(s.candidates.size());
  s.candidates.push_back(std::move(sm90));
  for (const char* kernel : {"sm100", "sm103", "sm120", "sm89"})
    s.candidates.push_back(
        {kernel, gpu::built() ? "no kernel in this version" : "this build has no CUDA kernels"});
  return s;
}

cpu::Isa select_isa(const Request& request) {
  if (request.problem.recipe->q_mean) delta_cap_bytes();  // a bad value is refused before any work
  const Selection s = select(request);
  if (s.chosen < 0) {
    fail(VCA_ERR_UNSUPPORTED,
         {"nothing can run this problem", explain(request), "", "see vca_attn_explain"});
  }
  return s.isa;
}

std::string explain(const Request& request) {
  const Selection s = select(request);
  std::string text;
  for (size_t i = 0; i < s.candidates.size(); ++i) {
    const Candidate& c = s.candidates[i];
    text += c.kernel;
    text += static_cast<int>(i) == s.chosen ? ": chosen"
            : c.refusal.empty()             ? ": could run"
                                            : ": refused: " + c.refusal;
    text += '\n';
  }
  return text;
}

const char* mma_text(const spec::Recipe& r) {
  if (r.id == spec::RecipeId::exact) return "fp64";
  if (r.id == spec::RecipeId::bf16) return "QK serial_f32, PV serial_f32";
  if (r.v == spec::VFormat::int8_smooth) return "QK exact_int32, PV exact_int32, means serial_f32";
  if (r.fp4_v()) {
    return r.integer_scores() ? "QK exact_int32, PV serial_f32 on decoded NVFP4"
                              : "QK serial_f32, PV serial_f32 on decoded NVFP4";
  }
  if (r.qk != spec::QkFormat::int8)
    return r.v_smooth() ? "QK serial_f32, PV serial_f32, means serial_f32"
                        : "QK serial_f32, PV serial_f32";
  return r.v_smooth() ? "QK exact_int32, PV serial_f32, means serial_f32"
                      : "QK exact_int32, PV serial_f32";
}

}  // namespace vca::core
