# SPDX-License-Identifier: Apache-2.0
# cmake -DLOG=file -P run_nvcc.cmake -- command...: runs the command, keeps what it prints in LOG,
# and shows it when the command fails or warns.
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
elseif(text MATCHES "warning")
  message(NOTICE "${text}")
endif()
