# SPDX-License-Identifier: BSD-2-Clause
# What the CMakeLists.txt of a folder of tests calls. The folder says what its tests are; a test is a file
# *_test.cpp in it.
#
#   add_unit_tests()
#       Adds the folder's tests and those of its folder threads/ to unit_tests.
#   add_unit_program(NAME [SOURCES...] [LINK targets...] [SIMULATED] [PLAIN])
#       An executable of unit tests apart from unit_tests: those of the folder, and SOURCES. SIMULATED puts
#       the simulated adapter's system calls before libc's, and gives each case a process of its own. PLAIN:
#       what it tests is not the library; no sanitized build has it, and each other one does.
#   add_root_tests(LABEL label [ALONE] [PLAIN] [SOURCES files...] [LINK targets...])
#       Tests that call code directly in network namespaces of their own. One executable for each file.
#   add_program_tests(LABEL label [ALONE] [DEVICES devices...] [LINK targets...])
#       Tests that run programs with the library preloaded. One executable for each file. No sanitized build
#       has them: those of the release build take a sanitized library from VMA_TEST_BUILD.
#   add_parity_tests([DEVICES devices...] [WITHOUT theme])
#       The same, registered by theme, and only over each device but xdp without the cases of one theme.
#   add_test_program(NAME SOURCES...)
#       A program app_NAME that tests run. A build with the thread sanitizer has it, too, since that needs
#       programs of its own.
#
# VMA_UNIT_TESTS=threads: of the tests that call code directly the build has those in folders threads/ alone.
# ALONE: the tests look at all processes of the machine, or at time of a processor, so ctest runs nothing
# beside them.
# DEVICES: xdp (the default), rdma, mlx5. A test over rdma or mlx5 is the same executable with
# VMA_TEST_DEVICE, the device's name before the test's, and the label hardware.
set(VMA_TESTS_DIR ${CMAKE_BINARY_DIR}/tests)  # where programs and executables of tests lie

function(add_unit_tests)
  file(GLOB threads CONFIGURE_DEPENDS threads/*_test.cpp)
  file(GLOB others CONFIGURE_DEPENDS *_test.cpp)
  if(VMA_UNIT_TESTS STREQUAL "threads")
    set(others "")
  endif()
  target_sources(unit_tests PRIVATE ${threads} ${others})
  compile_folder_together(unit_tests ${others} ${threads})
endfunction()

# Does this build leave out what calls code directly, apart from threads/? PREFIX_PLAIN: of what is not the
# library.
macro(_left_out prefix out)
  set(${out} OFF)
  if(${prefix}_PLAIN)
    if(VMA_SANITIZE)
      set(${out} ON)
    endif()
  elseif(VMA_UNIT_TESTS STREQUAL "threads")
    set(${out} ON)
  endif()
endmacro()

function(add_unit_program name)
  cmake_parse_arguments(PARSE_ARGV 1 UNIT "SIMULATED;PLAIN" "" "LINK;SOURCES")
  _left_out(UNIT out)
  if(out)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS *_test.cpp)
  add_executable(${name} ${sources} ${UNIT_SOURCES} ${UNIT_UNPARSED_ARGUMENTS})
  target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
  compile_together(${name})
  if(UNIT_SIMULATED)
    target_compile_definitions(${name} PRIVATE SIM_LIBRARY="$<TARGET_FILE:mlx5_sim>"
      SIM_SYSFS_TOOL="$<TARGET_FILE:mlx5_sim_sysfs>" SIM_SANITIZERS="${VMA_SANITIZE}")
    # The linker keeps the order, so that also libibverbs calls the simulator.
    target_link_libraries(${name} PRIVATE -Wl,--no-as-needed mlx5_sim -Wl,--as-needed ibverbs mlx5)
    add_dependencies(${name} mlx5_sim_sysfs)
  endif()
  target_link_libraries(${name} PRIVATE ${UNIT_LINK} GTest::gtest Threads::Threads)
  if(UNIT_SIMULATED)
    gtest_discover_tests(${name} PROPERTIES LABELS unit DISCOVERY_TIMEOUT 60)
  else()
    add_grouped_tests(${name} BY SUITE PROPERTIES LABELS unit TIMEOUT 300)
  endif()
endfunction()

# An executable of the folder: one source, linked with the support of tests in namespaces.
function(_add_hosts_test source)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source} ${TESTS_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${VMA_TESTS_DIR})
  target_link_libraries(${name} PRIVATE test_support ${TESTS_LINK} GTest::gtest_main)
  set(name ${name} PARENT_SCOPE)
endfunction()

# Registers the tests of ${name}, with the label and the needs of the folder.
macro(_discover_labelled_tests)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${TESTS_LABEL} RUN_SERIAL ${TESTS_ALONE} PROCESSORS 2 TIMEOUT 120)
endmacro()

function(add_root_tests)
  cmake_parse_arguments(PARSE_ARGV 0 TESTS "ALONE;PLAIN" "LABEL" "LINK;SOURCES")
  _left_out(TESTS out)
  if(out)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS *_test.cpp)
  foreach(source IN LISTS sources)
    _add_hosts_test(${source})
    if(vma_core IN_LIST TESTS_LINK)
      target_sources(${name} PRIVATE $<TARGET_OBJECTS:vma_core>)
      precompile_headers(${name} REUSE_FROM unit_tests)
    endif()
    _discover_labelled_tests()
  endforeach()
endfunction()

function(add_program_tests)
  if(VMA_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 0 TESTS "ALONE" "LABEL" "DEVICES;LINK")
  if(NOT TESTS_DEVICES)
    set(TESTS_DEVICES xdp)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS *_test.cpp)
  foreach(source IN LISTS sources)
    _add_hosts_test(${source})
    add_dependencies(${name} vma test_programs)
    precompile_headers(${name} REUSE_FROM test_support)
    foreach(device IN LISTS TESTS_DEVICES)
      if(device STREQUAL "xdp")
        _discover_labelled_tests()
      else()
        gtest_discover_tests(${name} TEST_PREFIX ${device}. TEST_LIST ${name}_${device} DISCOVERY_TIMEOUT 60
          PROPERTIES LABELS hardware PROCESSORS 2 TIMEOUT 240 ENVIRONMENT VMA_TEST_DEVICE=${device})
      endif()
    endforeach()
  endforeach()
endfunction()

function(add_parity_tests)
  if(VMA_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 0 TESTS "" "WITHOUT;RING_LOGIC;RING_THEME" "DEVICES")
  set(TESTS_LINK parity_compare)
  file(GLOB sources CONFIGURE_DEPENDS *_test.cpp)
  foreach(source IN LISTS sources)
    _add_hosts_test(${source})
    add_dependencies(${name} vma test_programs)
    precompile_headers(${name} REUSE_FROM test_support)
    add_grouped_tests(${name} BY THEME PROPERTIES LABELS integration TIMEOUT 600)
    if(TESTS_RING_LOGIC)
      add_grouped_tests(${name} BY THEME PREFIX rings${TESTS_RING_LOGIC}. ONLY ${TESTS_RING_THEME}
        ENVIRONMENT VMA_TEST_RING_LOGIC=${TESTS_RING_LOGIC} PROPERTIES LABELS integration TIMEOUT 600)
    endif()
    foreach(device IN LISTS TESTS_DEVICES)
      if(NOT device STREQUAL "xdp")
        add_grouped_tests(${name} BY THEME PREFIX ${device}. WITHOUT "${TESTS_WITHOUT}"
          ENVIRONMENT VMA_TEST_DEVICE=${device} PROPERTIES LABELS hardware TIMEOUT 600)
      endif()
    endforeach()
  endforeach()
endfunction()

function(add_test_program name)
  if(VMA_SANITIZE AND NOT VMA_SANITIZE STREQUAL "thread")
    return()
  endif()
  add_executable(app_${name} ${ARGN})
  set_target_properties(app_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${VMA_TESTS_DIR})
  target_include_directories(app_${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(app_${name} PRIVATE Threads::Threads)
  add_dependencies(test_programs app_${name})
endfunction()
