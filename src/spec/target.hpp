// SPDX-License-Identifier: Apache-2.0
// The chips whose arithmetic the specification can follow.
#pragma once

#include <cstdint>
#include <string_view>

namespace vca::spec {

enum class Target : uint8_t { cpu, sm89, sm90, sm100, sm103, sm120 };

inline constexpr Target kAllTargets[] = {Target::cpu,   Target::sm89,  Target::sm90,
                                         Target::sm100, Target::sm103, Target::sm120};

constexpr std::string_view to_string(Target target) {
  switch (target) {
    case Target::cpu:
      return "cpu";
    case Target::sm89:
      return "sm89";
    case Target::sm90:
      return "sm90";
    case Target::sm100:
      return "sm100";
    case Target::sm103:
      return "sm103";
    case Target::sm120:
      return "sm120";
  }
  return "invalid";
}

}  // namespace vca::spec
