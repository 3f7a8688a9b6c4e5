# The installed package: headers, one static library a component, the command, and bellowsConfig.cmake.
get_property(_components GLOBAL PROPERTY BELLOWS_COMPONENTS)
get_property(_libs GLOBAL PROPERTY BELLOWS_LIBS)

# bellows::bellows is all components.
add_library(bellows_all INTERFACE)
add_library(bellows::bellows ALIAS bellows_all)
set_target_properties(bellows_all PROPERTIES EXPORT_NAME bellows)
list(TRANSFORM _components PREPEND bellows_ OUTPUT_VARIABLE _component_targets)
target_link_libraries(bellows_all INTERFACE ${_component_targets})

# How a user's CMake finds each third-party target that a component links.
set(BELLOWS_DEPENDENCIES "")
list(REMOVE_DUPLICATES _libs)
foreach(_lib IN LISTS _libs)
  if(_lib MATCHES "^PkgConfig::(.+)$")
    string(APPEND BELLOWS_DEPENDENCIES "find_dependency(PkgConfig)\npkg_check_modules(${CMAKE_MATCH_1} REQUIRED IMPORTED_TARGET ${${CMAKE_MATCH_1}_MODULE_NAME})\n")
  elseif(_lib MATCHES "^([^:]+)::")
    string(APPEND BELLOWS_DEPENDENCIES "find_dependency(${CMAKE_MATCH_1})\n")
  elseif(_lib STREQUAL "yaml-cpp")
    string(APPEND BELLOWS_DEPENDENCIES "find_dependency(${_lib})\n")
  endif()
endforeach()

set(_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/bellows)
install(TARGETS bellows_all ${_component_targets} EXPORT bellowsTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET bellows)
  install(TARGETS bellows RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # What a command of the user's own links, and what a plugin for the command does.
  install(TARGETS bellows_cli bellows_plain_libtorch bellows_plugin EXPORT bellowsTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/cli/command.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/bellows/cli)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/bellows/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/bellows
        FILES_MATCHING PATTERN "*.h" PATTERN "*_impl.h" EXCLUDE)
install(EXPORT bellowsTargets NAMESPACE bellows:: DESTINATION ${_config_dir})

include(CMakePackageConfigHelpers)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/bellowsConfig.cmake.in ${PROJECT_BINARY_DIR}/bellowsConfig.cmake
                              INSTALL_DESTINATION ${_config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/bellowsConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/bellowsConfig.cmake ${PROJECT_BINARY_DIR}/bellowsConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/BellowsTorch.cmake ${PROJECT_SOURCE_DIR}/cmake/BellowsOnednn.cmake
        DESTINATION ${_config_dir})
