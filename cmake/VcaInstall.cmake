# SPDX-License-Identifier: Apache-2.0
# cmake --install: headers, library, command, CMake package and pkg-config file.
include(CMakePackageConfigHelpers)

install(TARGETS vca EXPORT vcattnTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/vca DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING
        PATTERN "*.h" PATTERN "*.hpp")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET vcattn)
  install(TARGETS vcattn RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY examples/tiny_video_dit DESTINATION ${CMAKE_INSTALL_DATADIR}/vcattn/examples
          FILES_MATCHING PATTERN "*.safetensors" PATTERN "*.json" PATTERN "*.md")
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/vcattn)
install(EXPORT vcattnTargets NAMESPACE vcattn:: DESTINATION ${package_dir})
configure_package_config_file(cmake/vcattnConfig.cmake.in ${CMAKE_BINARY_DIR}/vcattnConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/vcattnConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/vcattnConfig.cmake ${CMAKE_BINARY_DIR}/vcattnConfigVersion.cmake
        DESTINATION ${package_dir})

# The pkg-config file finds its prefix from where it lies, so an installed tree may be moved.
file(RELATIVE_PATH VCA_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" VCA_PC_TO_PREFIX "${VCA_PC_TO_PREFIX}")
configure_file(cmake/vcattn.pc.in ${CMAKE_BINARY_DIR}/vcattn.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/vcattn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
