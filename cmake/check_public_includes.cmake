# SPDX-License-Identifier: Apache-2.0
# Fails when a file of examples/tiny_video_dit includes a header of the library's inside.
file(GLOB files ${SOURCE_DIR}/examples/tiny_video_dit/*.cpp
     ${SOURCE_DIR}/examples/tiny_video_dit/*.hpp)
if(NOT files)
  message(FATAL_ERROR "no sources under examples/tiny_video_dit")
endif()
set(bad "")
foreach(file IN LISTS files)
  file(STRINGS ${file} hits REGEX
       "^[ \t]*#[ \t]*include[ \t]*[\"<].*(spec|core|cpu|ptx|emu|kernels)/")
  foreach(hit IN LISTS hits)
    string(APPEND bad "\n  ${file}: ${hit}")
  endforeach()
endforeach()
if(bad)
  message(FATAL_ERROR "private headers included:${bad}")
endif()
