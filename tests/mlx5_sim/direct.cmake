# SPDX-License-Identifier: BSD-2-Clause
# The library's own data path (libvma/verbs/mlx5) beside libmlx5's, on the real libmlx5: one process, stepped by the test.
file(GLOB DIRECT_TESTS CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/direct_*.cpp)
add_executable(direct_tests ${DIRECT_TESTS} ${CMAKE_CURRENT_LIST_DIR}/fixture_test.cpp $<TARGET_OBJECTS:vma_core>)
target_compile_definitions(direct_tests PRIVATE _GNU_SOURCE SIM_LIBRARY="$<TARGET_FILE:mlx5_sim>"
  SIM_SYSFS_TOOL="$<TARGET_FILE:mlx5_sim_sysfs>")
target_link_libraries(direct_tests PRIVATE -Wl,--no-as-needed mlx5_sim -Wl,--as-needed vma_core nl_core ibverbs mlx5 GTest::gtest
  Threads::Threads)
gtest_discover_tests(direct_tests PROPERTIES LABELS unit DISCOVERY_TIMEOUT 60)
