# SPDX-License-Identifier: Apache-2.0
# cmake -DLOG=file -DOBJECT=file -P run_nvcc.cmake -- command...: runs a compilation, keeps what it
# prints in LOG and shows it when the command fails or warns.
#
# Two things that ptxas only remarks upon are errors here, and OBJECT is removed again:
#   C7510 to C7518  wgmma instructions are serialised: the products of a group wait for each other
#   spills          registers do not suffice, values go through local memory
set(command "")
set(after_dashes OFF)
foreach(i RANGE 1 ${CMAKE_ARGC})
  if(after_dashes AND i LESS CMAKE_ARGC)
    list(APPEND command "${CMAKE_ARGV${i}}")
  elseif("${CMAKE_ARGV${i}}" STREQUAL "--")
    set(after_dashes ON)
  endif()
endforeach()
execute_process(COMMAND ${command} OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE result)
file(WRITE ${LOG} "${text}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${text}")
endif()
set(broken "")
if(text MATCHES "[^\n]*\\(C751[0-8]\\)[^\n]*")
  string(APPEND broken "wgmma is serialised, which a build here refuses:\n  ${CMAKE_MATCH_0}\n")
endif()
string(REGEX MATCHALL "[^\n]*[0-9]+ bytes spill stores, [0-9]+ bytes spill loads" frames "${text}")
foreach(frame IN LISTS frames)
  if(NOT frame MATCHES " 0 bytes spill stores, 0 bytes spill loads")
    string(STRIP "${frame}" frame)
    string(APPEND broken "a kernel spills, which a build here refuses: ${frame}\n")
  endif()
endforeach()
if(NOT broken STREQUAL "")
  file(REMOVE ${OBJECT})
  message(FATAL_ERROR "${broken}The whole output of the compiler: ${LOG}")
elseif(text MATCHES "warning")
  message(NOTICE "${text}")
endif()
