// SPDX-License-Identifier: Apache-2.0
// How the command fails: one exception type per exit code that is not 0.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace vca::tools {

// 0 ok, 1 a check failed (selftest), 2 usage or bad input, 130 interrupted.
inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitInterrupted = 130;

// Something the user can mend: what is wrong, what was given, what is allowed, what to do. Empty
// parts are left out of the text.
class UserError : public std::runtime_error {
 public:
  UserError(const std::string& what, const std::string& got, const std::string& allowed,
            const std::string& hint)
      : std::runtime_error(text(what, got, allowed, hint)) {}

 private:
  static std::string text(const std::string& what, const std::string& got,
                          const std::string& allowed, const std::string& hint) {
    std::string s = what;
    if (!got.empty()) s += "\n  got:     " + got;
    if (!allowed.empty()) s += "\n  allowed: " + allowed;
    if (!hint.empty()) s += "\n  hint:    " + hint;
    return s;
  }
};

// SIGINT or SIGTERM arrived; unwinding removes every file that is not complete.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

}  // namespace vca::tools
