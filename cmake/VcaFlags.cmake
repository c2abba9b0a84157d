# SPDX-License-Identifier: Apache-2.0
# One interface target carries the flags that every file of the project is compiled with.

find_package(OpenMP REQUIRED COMPONENTS CXX)

add_library(vca_flags INTERFACE)

# The standard is passed explicitly too: CMake leaves the flag out where the compiler's own default
# is already new enough, and a silent default is not something the numerics should rest on.
# Contraction is off everywhere because the specification says where an FMA stands.
target_compile_options(
  vca_flags
  INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-std=c++20>
            -Wall
            -Wextra
            -Werror
            -ffp-contract=off
            # -O2 keeps a cold build short on two cores; the CPU units alone ask for -O3.
            $<$<CONFIG:Release>:-O2>)

if(VCA_SANITIZE)
  # A sanitizer report must fail a test, so nothing recovers.
  target_compile_options(vca_flags INTERFACE -fsanitize=${VCA_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer -g)
  target_link_options(vca_flags INTERFACE -fsanitize=${VCA_SANITIZE})
endif()

if(VCA_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "VCA_FUZZ needs clang and its libFuzzer (scripts/fuzz.sh sets both up)")
  endif()
  # Coverage counters everywhere; libFuzzer's main only in the programs named *_guided.
  target_compile_options(vca_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(vca_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# vca_glob(OUT pattern...): sources matching the patterns, seen again at every build; a directory
# that does not exist gives an empty list.
macro(vca_glob OUT)
  file(GLOB ${OUT} CONFIGURE_DEPENDS ${ARGN})
  list(SORT ${OUT})
endmacro()
