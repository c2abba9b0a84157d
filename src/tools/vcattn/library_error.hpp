// SPDX-License-Identifier: Apache-2.0
// A refusal by the library, told in the layout of the command's own messages.
#pragma once

#include <string>

#include "tools/vcattn/errors.hpp"
#include "vca/vca.h"

namespace vca::tools {

// The library writes "what; got x; allowed: y; hint: z" into one line.
inline UserError library_error(const std::string& doing) {
  std::string text = doing + vca_last_error();
  const auto put_on_a_line = [&text](const char* part, const char* with) {
    const size_t at = text.find(part);
    if (at != std::string::npos) text.replace(at, std::string(part).size(), with);
  };
  put_on_a_line("; got ", "\n  got:     ");
  put_on_a_line("; allowed: ", "\n  allowed: ");
  put_on_a_line("; hint: ", "\n  hint:    ");
  return UserError(text, "", "", "");
}

}  // namespace vca::tools
