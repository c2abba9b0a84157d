# SPDX-License-Identifier: Apache-2.0
# What bench_problems.cpp and bench_output.cpp include, in VCA_GENERATED_DIR: the named problems as
# a string literal, and the commit (target vca_commit).
include_guard(GLOBAL)
set(VCA_GENERATED_DIR ${CMAKE_BINARY_DIR}/generated)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/shapes.json)
file(READ ${CMAKE_SOURCE_DIR}/bench/shapes.json shapes_json)
file(CONFIGURE OUTPUT ${VCA_GENERATED_DIR}/bench_shapes.inl CONTENT "R\"json(@shapes_json@)json\"\n" @ONLY)
add_custom_target(
  vca_commit
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUT=${VCA_GENERATED_DIR}/vca_commit.hpp -P
          ${CMAKE_SOURCE_DIR}/cmake/write_commit.cmake
  BYPRODUCTS ${VCA_GENERATED_DIR}/vca_commit.hpp
  VERBATIM)
