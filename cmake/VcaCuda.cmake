# SPDX-License-Identifier: Apache-2.0
# CUDA kernels. nvcc is called by rules of our own and not through CMake's CUDA language: CMake 3.25
# probes a compiler with architectures that CUDA 13 has dropped, and what ptxas says about registers
# and spills has to be kept (scripts/kernel_resources.py).
#
# VCA_CUDA  AUTO: when nvcc is there; ON: fails without it; OFF
# Sets VCA_HAVE_CUDA, VCA_CUDA_OBJECTS, VCA_CUDA_LIBRARIES, VCA_CUDA_INCLUDE and the target vca_cuda.

set(VCA_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON, OFF")
set_property(CACHE VCA_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT VCA_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "VCA_CUDA is '${VCA_CUDA}'; allowed: AUTO, ON, OFF")
endif()

set(VCA_HAVE_CUDA OFF)
set(VCA_CUDA_OBJECTS "")
set(VCA_CUDA_LIBRARIES "")
if(VCA_CUDA STREQUAL "OFF")
  return()
endif()

# The last place is where scripts/setup.sh --cuda puts one when the machine has none.
find_program(
  VCA_NVCC nvcc
  HINTS ENV CUDA_HOME ENV CUDA_PATH ENV CUDACXX
  PATHS /usr/local/cuda ${CMAKE_SOURCE_DIR}/.venv/cuda-toolkit/nvidia/cu13
  PATH_SUFFIXES bin)
if(VCA_NVCC)
  # Asked and not derived from the path: what is called nvcc may be a script that calls another.
  execute_process(COMMAND ${VCA_NVCC} --dryrun -E -x cu /dev/null OUTPUT_VARIABLE nvcc_says
                  ERROR_VARIABLE nvcc_says)
  if(nvcc_says MATCHES "_HERE_=([^\n]+)")
    get_filename_component(cuda_root ${CMAKE_MATCH_1}/.. REALPATH)
  endif()
  find_library(VCA_CUDART cudart_static HINTS ${cuda_root}
               PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
  find_path(VCA_CUDA_INCLUDE cuda_runtime.h HINTS ${cuda_root}
            PATH_SUFFIXES include targets/x86_64-linux/include)
endif()
set(cuda_missing "")
foreach(part VCA_NVCC VCA_CUDART VCA_CUDA_INCLUDE)
  if(NOT ${part})
    list(APPEND cuda_missing ${part})
  endif()
endforeach()
if(cuda_missing)
  if(VCA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "VCA_CUDA is ON, but these were not found: ${cuda_missing}\n"
                        "Set CUDA_HOME to a CUDA toolkit 13.0, or let scripts/setup.sh --cuda "
                        "install a compiler, or use -DVCA_CUDA=OFF.")
  endif()
  message(STATUS "CUDA kernels: left out, not found: ${cuda_missing}")
  return()
endif()
set(VCA_HAVE_CUDA ON)

# No contraction and no flush to zero: the specification says where an FMA stands.
set(nvcc_flags
    -std=c++20
    -O3
    -fmad=false
    -ftz=false
    --expt-relaxed-constexpr
    -gencode arch=compute_90a,code=sm_90a
    -lineinfo
    -Xptxas -v,--warn-on-spills
    -Xcompiler -fPIC,-fvisibility=hidden,-ffp-contract=off
    -I${CMAKE_SOURCE_DIR}/src
    -I${CMAKE_SOURCE_DIR}/include)

# vca_cuda_object(OUT SOURCE): a rule that compiles SOURCE; what ptxas says stands in the .log file
# beside the object. OUT is set to the object.
function(vca_cuda_object OUT SOURCE)
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR} ${SOURCE})
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  get_filename_component(directory ${object} DIRECTORY)
  file(MAKE_DIRECTORY ${directory})
  add_custom_command(
    OUTPUT ${object} ${object}.log
    COMMAND ${CMAKE_COMMAND} -DLOG=${object}.log -DOBJECT=${object} -P
            ${CMAKE_SOURCE_DIR}/cmake/run_nvcc.cmake --
            ${VCA_NVCC} -ccbin ${CMAKE_CXX_COMPILER} ${nvcc_flags} ${ARGN} -MD -MF ${object}.d -MT
            ${object} -c ${SOURCE} -o ${object}
    DEPENDS ${SOURCE} ${CMAKE_SOURCE_DIR}/cmake/run_nvcc.cmake
    DEPFILE ${object}.d
    COMMENT "Building CUDA object ${name}.o"
    VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${OUT} ${object} PARENT_SCOPE)
endfunction()

vca_glob(cuda_sources ${CMAKE_SOURCE_DIR}/src/kernels/*/*.cu)
foreach(source IN LISTS cuda_sources)
  vca_cuda_object(object ${source})
  list(APPEND VCA_CUDA_OBJECTS ${object})
endforeach()
add_custom_target(vca_cuda DEPENDS ${VCA_CUDA_OBJECTS})

find_package(Threads REQUIRED)
set(VCA_CUDA_LIBRARIES ${VCA_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)
message(STATUS "CUDA kernels: sm_90a with ${VCA_NVCC}")
