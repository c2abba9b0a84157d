# SPDX-License-Identifier: Apache-2.0
# Tests that need a GPU. They are built with the CUDA kernels and run by hand, on the machine that
# has the GPU: nothing but glibc and the driver is needed there.

vca_cuda_object(capi_object ${CMAKE_SOURCE_DIR}/tests/device/capi_test.cu
                -I${CMAKE_SOURCE_DIR}/tests)
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libgomp.a OUTPUT_VARIABLE static_gomp
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT IS_ABSOLUTE "${static_gomp}")
  set(static_gomp OpenMP::OpenMP_CXX)
endif()
add_executable(device_capi_test ${capi_object} ${vca_objects})
set_target_properties(device_capi_test PROPERTIES LINKER_LANGUAGE CXX RUNTIME_OUTPUT_DIRECTORY
                                                                      ${CMAKE_BINARY_DIR}/tests)
target_link_options(device_capi_test PRIVATE -static-libstdc++ -static-libgcc)
target_link_libraries(device_capi_test PRIVATE ${static_gomp} ${VCA_CUDA_LIBRARIES})
add_dependencies(device_capi_test vca_cuda)
