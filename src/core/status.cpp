// SPDX-License-Identifier: Apache-2.0
#include "core/status.hpp"

#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>

namespace vca::core {
namespace {

std::string join(const Message& m) {
  std::string text = m.what;
  if (!m.got.empty()) text += "; got " + m.got;
  if (!m.allowed.empty()) text += "; allowed: " + m.allowed;
  if (!m.hint.empty()) text += "; hint: " + m.hint;
  return text;
}

// A fixed buffer: reporting that memory has run out must not need memory.
thread_local char t_last_error[2048] = "";

}  // namespace

Failure::Failure(vca_status status, const Message& message)
    : status_(status), text_(join(message)) {}

void fail(vca_status status, Message message) { throw Failure(status, message); }

void fail_overflow(const char* what, int64_t a, char op, int64_t b) {
  throw Failure(VCA_ERR_INVALID_ARGUMENT,
                {std::string(what) + " does not fit 63 bits",
                 to_text(a) + " " + op + " " + to_text(b), "at most 2^63 - 1 bytes or elements",
                 "check the shape and the strides for uninitialised or negative values"});
}

void invalid(std::string what, std::string got, std::string allowed, std::string hint) {
  throw Failure(VCA_ERR_INVALID_ARGUMENT,
                {std::move(what), std::move(got), std::move(allowed), std::move(hint)});
}

std::string to_text(int64_t value) { return std::to_string(value); }

std::string to_text(double value) {
  char buffer[40];
  std::snprintf(buffer, sizeof(buffer), "%.9g", value);
  return buffer;
}

void set_last_error(const char* text) noexcept {
  std::strncpy(t_last_error, text, sizeof(t_last_error) - 1);
  t_last_error[sizeof(t_last_error) - 1] = '\0';
}

const char* last_error() noexcept { return t_last_error; }

vca_status status_of_current_exception() noexcept {
  try {
    throw;
  } catch (const Failure& failure) {
    set_last_error(failure.what());
    return failure.status();
  } catch (const std::bad_alloc&) {
    set_last_error(
        "out of host memory; hint: use fewer heads or tokens a call, or vca_attn_run without a "
        "workspace, which works through the heads in pieces");
    return VCA_ERR_OUT_OF_MEMORY;
  } catch (const std::length_error&) {
    set_last_error("the problem is larger than any memory; hint: check B and S");
    return VCA_ERR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return VCA_ERR_INTERNAL;
  } catch (...) {
    set_last_error("unknown exception inside the library; hint: please report it");
    return VCA_ERR_INTERNAL;
  }
}

}  // namespace vca::core
