# SPDX-License-Identifier: Apache-2.0
# Run at every build: writes OUT with the commit that is checked out in SOURCE_DIR, and touches it
# only when that has changed.
set(commit unknown)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} rev-parse --short=7 HEAD OUTPUT_VARIABLE head
                  RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed)
    set(commit ${head})
    execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} diff --quiet HEAD RESULT_VARIABLE dirty
                    ERROR_QUIET)
    if(dirty)
      set(commit ${head}-dirty)
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define VCA_COMMIT \"${commit}\"\n" @ONLY)
