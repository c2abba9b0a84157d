# SPDX-License-Identifier: Apache-2.0
# The library: object libraries by layer, one shared library that exports the C ABI and nothing
# else, and one static library with the same objects for what needs the internals.

set(VCA_OBJECT_TARGETS "")

# vca_layer(NAME pattern...): an object library of one layer.
function(vca_layer NAME)
  vca_glob(sources ${ARGN})
  if(NOT sources)
    return()
  endif()
  add_library(${NAME} OBJECT ${sources})
  target_include_directories(${NAME} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(${NAME} PRIVATE vca_flags OpenMP::OpenMP_CXX)
  target_compile_definitions(
    ${NAME} PRIVATE VCA_BUILDING_LIBRARY VCA_VERSION_STRING="${PROJECT_VERSION}")
  set(VCA_OBJECT_TARGETS ${VCA_OBJECT_TARGETS} ${NAME} PARENT_SCOPE)
endfunction()

foreach(layer spec cpu core)
  vca_layer(vca_${layer} ${CMAKE_SOURCE_DIR}/src/${layer}/*.cpp
            ${CMAKE_SOURCE_DIR}/src/${layer}/*/*.cpp)
endforeach()
if(VCA_FUZZ)
  # Comparisons of numbers in the arithmetic say nothing about how to get past a check, and telling
  # the fuzzer about each took half of its time.
  foreach(layer vca_spec vca_cpu)
    target_compile_options(${layer} PRIVATE -fno-sanitize-coverage=trace-cmp)
  endforeach()
endif()
if(VCA_HAVE_CUDA)
  vca_layer(vca_gpu ${CMAKE_SOURCE_DIR}/src/gpu/cuda/*.cpp)
  target_include_directories(vca_gpu SYSTEM PRIVATE ${VCA_CUDA_INCLUDE})
else()
  vca_layer(vca_gpu ${CMAKE_SOURCE_DIR}/src/gpu/unavailable.cpp)
endif()

# Units of the CPU backend. Each is one translation unit compiled for one instruction set and chosen
# at run time; all give the same bits, so optimisation level and width are free.
set(unit_dir ${CMAKE_SOURCE_DIR}/src/cpu/units)
set(avx2_flags -mavx2 -mfma -mf16c)
set(avx512_flags -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni ${avx2_flags})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND avx512_flags -mprefer-vector-width=512)
endif()
set_source_files_properties(${unit_dir}/unit_portable.cpp PROPERTIES COMPILE_OPTIONS -O3)
set_source_files_properties(${unit_dir}/unit_avx2.cpp PROPERTIES COMPILE_OPTIONS
                                                                "-O3;${avx2_flags}")
set_source_files_properties(${unit_dir}/unit_avx512.cpp PROPERTIES COMPILE_OPTIONS
                                                                  "-O3;${avx512_flags}")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND VCA_ISA_UNITS)
  set(isa_units avx2 avx512)
else()
  set(isa_units "")
endif()
if(TARGET vca_cpu)
  foreach(isa avx2 avx512)
    string(TOUPPER ${isa} isa_upper)
    if(isa IN_LIST isa_units AND EXISTS ${unit_dir}/unit_${isa}.cpp)
      target_compile_definitions(vca_cpu PUBLIC VCA_HAVE_UNIT_${isa_upper}=1)
    else()
      set_source_files_properties(${unit_dir}/unit_${isa}.cpp PROPERTIES HEADER_FILE_ONLY ON)
    endif()
  endforeach()
endif()

if(NOT VCA_OBJECT_TARGETS)
  message(FATAL_ERROR "no library sources found under ${CMAKE_SOURCE_DIR}/src")
endif()

set(vca_objects "")
foreach(layer IN LISTS VCA_OBJECT_TARGETS)
  list(APPEND vca_objects $<TARGET_OBJECTS:${layer}>)
endforeach()
list(APPEND vca_objects ${VCA_CUDA_OBJECTS})

add_library(vca SHARED ${vca_objects})
set_target_properties(
  vca
  PROPERTIES OUTPUT_NAME vcattn
             EXPORT_NAME vcattn
             VERSION ${PROJECT_VERSION}
             SOVERSION ${PROJECT_VERSION_MAJOR}
             LINKER_LANGUAGE CXX
             LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/vcattn.map)
target_include_directories(vca PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                                      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(vca PRIVATE $<BUILD_INTERFACE:vca_flags> OpenMP::OpenMP_CXX
                                  ${VCA_CUDA_LIBRARIES})
# Hidden visibility does not hide the instantiations of the standard library's templates; the map does.
target_link_options(vca PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/vcattn.map)
if(NOT VCA_SANITIZE)
  target_link_options(vca PRIVATE -Wl,--no-undefined)
endif()

add_library(vca_static STATIC ${vca_objects})
set_target_properties(vca_static PROPERTIES OUTPUT_NAME vcattn_static LINKER_LANGUAGE CXX)
target_include_directories(vca_static PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_link_libraries(vca_static PUBLIC OpenMP::OpenMP_CXX ${VCA_CUDA_LIBRARIES})
if(VCA_HAVE_CUDA)
  # Two targets share the objects: one rule makes them, also where make runs in parallel.
  add_dependencies(vca vca_cuda)
  add_dependencies(vca_static vca_cuda)
endif()
if(VCA_SANITIZE)
  target_link_libraries(vca_static PUBLIC vca_flags)
endif()
