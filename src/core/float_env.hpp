// SPDX-License-Identifier: Apache-2.0
// The specification assumes the default floating-point environment. A caller may have another one
// (frameworks offer to flush subnormals), and worker threads keep whatever their creator had, so
// every thread of a call gets the default for its time inside and its own back afterwards.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace vca::core {

class DefaultFloatEnv {
 public:
  DefaultFloatEnv(const DefaultFloatEnv&) = delete;
  DefaultFloatEnv& operator=(const DefaultFloatEnv&) = delete;
#if defined(__SSE2__)
  // Round to nearest, subnormals kept, exceptions masked.
  DefaultFloatEnv() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~DefaultFloatEnv() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  DefaultFloatEnv() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnv() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

}  // namespace vca::core
