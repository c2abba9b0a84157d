# SPDX-License-Identifier: Apache-2.0
# The emulator that runs kernel sources on the host (docs/emulator.md). Only tests link it.

find_package(Threads REQUIRED)

vca_glob(emulator_sources ${CMAKE_SOURCE_DIR}/src/emu/*.cpp)
add_library(vca_emu STATIC ${emulator_sources})
target_include_directories(vca_emu PUBLIC ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(vca_emu PRIVATE vca_flags PUBLIC vca_static Threads::Threads)
# The matrix products are most of a run, and integers at any width give the same bits.
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/emu/mma_exec.cpp PROPERTIES COMPILE_OPTIONS -O3)
# Kernel sources carry unroll pragmas for nvcc. g++ does not know them; clang may say that it chose
# not to follow one.
target_compile_options(
  vca_emu INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-unknown-pragmas>
                    $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
