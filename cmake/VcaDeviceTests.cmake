# SPDX-License-Identifier: Apache-2.0
# Programs that need a GPU. They are built with the CUDA kernels (target device_tests) and run on the
# machine that has the GPU, by tests/device/run.sh: nothing but glibc and the driver is needed there.
#   tests/device/<name>.cu  the program device_<name>
#   tests/device/*.cpp      device_capi_test, the C ABI's tests: host code alone
# The latter once more as emulated_capi_test, on a CUDA runtime and kernels that are emulated on the
# host: the whole way of a call on a device, without one.

find_package(GTest REQUIRED)
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libgomp.a OUTPUT_VARIABLE static_gomp
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT IS_ABSOLUTE "${static_gomp}")
  set(static_gomp OpenMP::OpenMP_CXX)
endif()
add_custom_target(device_tests)

# vca_device_program(NAME object-or-source...): a program of the library's objects and these.
function(vca_device_program NAME)
  add_executable(${NAME} ${ARGN} ${vca_objects})
  set_target_properties(${NAME} PROPERTIES LINKER_LANGUAGE CXX RUNTIME_OUTPUT_DIRECTORY
                                                               ${CMAKE_BINARY_DIR}/device)
  target_include_directories(
    ${NAME} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include
                    ${CMAKE_SOURCE_DIR}/tests)
  target_include_directories(${NAME} SYSTEM PRIVATE ${VCA_CUDA_INCLUDE})
  target_link_options(${NAME} PRIVATE -static-libstdc++ -static-libgcc)
  target_link_libraries(${NAME} PRIVATE vca_flags ${static_gomp} ${VCA_CUDA_LIBRARIES})
  add_dependencies(${NAME} vca_cuda)
  add_dependencies(device_tests ${NAME})
endfunction()

vca_glob(device_sources ${CMAKE_SOURCE_DIR}/tests/device/*.cu)
foreach(source IN LISTS device_sources)
  get_filename_component(stem ${source} NAME_WE)
  # OpenMP: the specification's results, on all cores.
  vca_cuda_object(object ${source} -I${CMAKE_SOURCE_DIR}/tests -Xcompiler ${OpenMP_CXX_FLAGS})
  vca_device_program(device_${stem} ${object})
endforeach()
target_sources(device_sm90_attention_test
               PRIVATE ${CMAKE_SOURCE_DIR}/tests/kernels/packed_problem.cpp)

vca_cuda_object(object ${CMAKE_SOURCE_DIR}/tests/ptx/conformance.cu -I${CMAKE_SOURCE_DIR}/tests)
vca_device_program(device_conformance ${object})

vca_glob(capi_sources ${CMAKE_SOURCE_DIR}/tests/device/*.cpp)
# The first test of the program is in the first source.
list(REMOVE_ITEM capi_sources ${CMAKE_SOURCE_DIR}/tests/device/capi_calls.cpp)
list(PREPEND capi_sources ${CMAKE_SOURCE_DIR}/tests/device/capi_calls.cpp)
vca_device_program(device_capi_test ${capi_sources})
target_link_libraries(device_capi_test PRIVATE GTest::gtest)

vca_glob(emulated_sources ${CMAKE_SOURCE_DIR}/tests/device/emulated/*.cpp)
add_executable(emulated_capi_test ${capi_sources} ${emulated_sources})
set_target_properties(emulated_capi_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                                    ${CMAKE_BINARY_DIR}/tests)
target_include_directories(emulated_capi_test PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests)
target_include_directories(emulated_capi_test SYSTEM PRIVATE ${VCA_CUDA_INCLUDE})
target_compile_definitions(emulated_capi_test PRIVATE VCA_EMULATED_DEVICE=1)
target_link_libraries(emulated_capi_test PRIVATE vca_flags vca_emu vca_static GTest::gtest)
add_test(NAME emulated_capi_test COMMAND emulated_capi_test)
set_tests_properties(emulated_capi_test PROPERTIES LABELS device TIMEOUT 600 ENVIRONMENT
                                                                             OMP_NUM_THREADS=2)

# The library itself on the emulated device, for the Python package's tests: what a call with a
# device, a stream and a group state does. Not for use, and not installed.
set(emulated_objects ${vca_objects})
list(REMOVE_ITEM emulated_objects ${VCA_CUDA_OBJECTS}) # the emulated launchers stand in for them
add_library(emulated_library SHARED EXCLUDE_FROM_ALL ${emulated_sources} ${emulated_objects})
set_target_properties(
  emulated_library
  PROPERTIES OUTPUT_NAME vcattn_emulated LINKER_LANGUAGE CXX
             CXX_VISIBILITY_PRESET default # the tests call the emulated runtime
             LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_include_directories(emulated_library PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests)
target_include_directories(emulated_library SYSTEM PRIVATE ${VCA_CUDA_INCLUDE})
target_link_libraries(emulated_library PRIVATE vca_flags vca_emu OpenMP::OpenMP_CXX)
# Its own runtime, also in a process that has the real one.
target_link_options(emulated_library PRIVATE -Wl,-Bsymbolic)

# `vcattn bench` without the command's other parts, for a machine that lacks their libraries; and
# with the emulated runtime.
find_package(CLI11 QUIET CONFIG)
find_package(nlohmann_json QUIET CONFIG)
if(CLI11_FOUND AND nlohmann_json_FOUND)
  include(VcaBench)
  set(bench_sources atomic_file command_line interrupt machine progress text_table)
  list(TRANSFORM bench_sources REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/src/tools/vcattn/\\1.cpp")
  vca_glob(bench_parts ${CMAKE_SOURCE_DIR}/src/tools/vcattn/bench*.cpp)
  list(FILTER bench_parts EXCLUDE REGEX "_no_cuda")
  list(APPEND bench_sources ${bench_parts} ${CMAKE_SOURCE_DIR}/tests/device/bench/main.cpp)
  vca_device_program(device_bench ${bench_sources})
  target_compile_options(device_bench PRIVATE ${OpenMP_CXX_FLAGS})
  add_executable(emulated_bench ${bench_sources} ${emulated_sources})
  set_target_properties(emulated_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(emulated_bench SYSTEM PRIVATE ${VCA_CUDA_INCLUDE})
  target_include_directories(emulated_bench PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(emulated_bench PRIVATE vca_flags vca_emu vca_static)
  foreach(program device_bench emulated_bench)
    target_include_directories(${program} PRIVATE ${VCA_GENERATED_DIR})
    target_link_libraries(${program} PRIVATE CLI11::CLI11 nlohmann_json::nlohmann_json)
    add_dependencies(${program} vca_commit)
  endforeach()
endif()
