# SPDX-License-Identifier: Apache-2.0
# The vcattn command and the C++ inference of the bundled video DiT.

set(tool_dir ${CMAKE_SOURCE_DIR}/src/tools/vcattn)
set(dit_dir ${CMAKE_SOURCE_DIR}/examples/tiny_video_dit)
vca_glob(tool_sources ${tool_dir}/*.cpp ${tool_dir}/*/*.cpp)
vca_glob(dit_sources ${dit_dir}/*.cpp)
set(tool_main ${tool_dir}/main.cpp)
list(REMOVE_ITEM tool_sources ${tool_main})
# Two bodies of one header.
if(VCA_HAVE_CUDA)
  list(REMOVE_ITEM tool_sources ${tool_dir}/bench_place_no_cuda.cpp)
else()
  list(REMOVE_ITEM tool_sources ${tool_dir}/bench_place_cuda.cpp)
endif()

if(NOT tool_sources AND NOT dit_sources)
  return()
endif()

find_package(PkgConfig QUIET)
find_package(CLI11 QUIET CONFIG)
find_package(nlohmann_json QUIET CONFIG)
find_package(PNG QUIET)
set(missing "")
if(NOT PKG_CONFIG_FOUND)
  list(APPEND missing pkg-config)
else()
  foreach(lib avformat avcodec avutil swscale)
    pkg_check_modules(VCA_${lib} QUIET IMPORTED_TARGET lib${lib})
    if(NOT VCA_${lib}_FOUND)
      list(APPEND missing lib${lib}-dev)
    endif()
  endforeach()
  pkg_check_modules(VCA_openblas QUIET IMPORTED_TARGET openblas)
  if(NOT VCA_openblas_FOUND)
    list(APPEND missing libopenblas-openmp-dev)
  endif()
endif()
if(NOT CLI11_FOUND)
  list(APPEND missing libcli11-dev)
endif()
if(NOT nlohmann_json_FOUND)
  list(APPEND missing nlohmann-json3-dev)
endif()
if(NOT PNG_FOUND)
  list(APPEND missing libpng-dev)
endif()
if(missing)
  list(JOIN missing " " missing_text)
  message(
    FATAL_ERROR
      "The vcattn command needs packages that are not installed: ${missing_text}\n"
      "On Debian: apt-get install ${missing_text}   (or: make setup)\n"
      "For the library alone: cmake -DVCA_BUILD_TOOLS=OFF -DVCA_BUILD_TESTS=OFF")
endif()

include(VcaBench)

# Everything but main(), so that tests can link it.
add_library(vca_tools STATIC ${tool_sources} ${dit_sources})
set_target_properties(vca_tools PROPERTIES LINKER_LANGUAGE CXX)
target_include_directories(vca_tools PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src
                                            ${CMAKE_SOURCE_DIR}/include)
target_include_directories(vca_tools PRIVATE ${VCA_GENERATED_DIR})
add_dependencies(vca_tools vca_commit)
if(VCA_HAVE_CUDA)
  target_include_directories(vca_tools SYSTEM PRIVATE ${VCA_CUDA_INCLUDE})
endif()
target_compile_definitions(
  vca_tools PUBLIC VCA_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                   VCA_DATA_SUBDIR="${CMAKE_INSTALL_DATADIR}/vcattn"
                   VCA_VERSION_STRING="${PROJECT_VERSION}")
target_link_libraries(
  vca_tools
  PUBLIC vca_static
         CLI11::CLI11
         nlohmann_json::nlohmann_json
         PNG::PNG
         PkgConfig::VCA_avformat
         PkgConfig::VCA_avcodec
         PkgConfig::VCA_avutil
         PkgConfig::VCA_swscale
         PkgConfig::VCA_openblas
         ${CMAKE_DL_LIBS}
  PRIVATE vca_flags)

if(EXISTS ${tool_main})
  add_executable(vcattn ${tool_main})
  target_link_libraries(vcattn PRIVATE vca_flags vca_tools)
endif()
