// SPDX-License-Identifier: Apache-2.0
// Errors inside the library are exceptions that carry a status and the four parts of a message; the
// C border turns them into a return value and the thread's last error.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "core/float_env.hpp"
#include "vca/vca.h"

namespace vca::core {

struct Message {
  std::string what;     // what is wrong
  std::string got;      // the offending value; empty when there is none
  std::string allowed;  // empty when it goes without saying
  std::string hint;     // what to do about it
};

class Failure : public std::exception {
 public:
  Failure(vca_status status, const Message& message);
  const char* what() const noexcept override { return text_.c_str(); }
  vca_status status() const noexcept { return status_; }

 private:
  vca_status status_;
  std::string text_;
};

[[noreturn]] void fail(vca_status status, Message message);
[[noreturn]] void fail_overflow(const char* what, int64_t a, char op, int64_t b);

// VCA_ERR_INVALID_ARGUMENT, the common case.
[[noreturn]] void invalid(std::string what, std::string got, std::string allowed, std::string hint);

std::string to_text(int64_t value);
std::string to_text(double value);

// Keeps `text` for vca_last_error() of this thread. Never throws: without memory a static text is
// kept.
void set_last_error(const char* text) noexcept;
const char* last_error() noexcept;

// Translates the exception being handled.
vca_status status_of_current_exception() noexcept;

// Runs the body of an exported function: nothing escapes.
template <class Body>
vca_status guarded(Body&& body) noexcept {
  const DefaultFloatEnv environment;
  try {
    body();
    return VCA_OK;
  } catch (...) {
    return status_of_current_exception();
  }
}

}  // namespace vca::core
