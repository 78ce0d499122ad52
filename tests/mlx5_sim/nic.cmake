# SPDX-License-Identifier: BSD-2-Clause
# The simulated adapter's queues (class Nic) as a static library, and its unit tests.
file(GLOB NIC_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/nic*.cpp)
list(FILTER NIC_SOURCES EXCLUDE REGEX "_test\\.cpp$|/nic_rig\\.cpp$")
add_library(mlx5_sim_nic STATIC ${NIC_SOURCES})
set_target_properties(mlx5_sim_nic PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(mlx5_sim_nic PUBLIC ${CMAKE_SOURCE_DIR})
target_include_directories(mlx5_sim_nic SYSTEM PUBLIC ${VERBS_INCLUDE} ${FMT_INCLUDE})
target_compile_definitions(mlx5_sim_nic PUBLIC _GNU_SOURCE FMT_HEADER_ONLY)
target_link_libraries(mlx5_sim_nic PUBLIC Threads::Threads)

file(GLOB NIC_TESTS CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/nic*_test.cpp)
add_executable(nic_tests ${NIC_TESTS} ${CMAKE_CURRENT_LIST_DIR}/nic_rig.cpp)
target_link_libraries(nic_tests PRIVATE mlx5_sim_nic GTest::gtest_main GTest::gmock)
gtest_discover_tests(nic_tests PROPERTIES LABELS unit DISCOVERY_TIMEOUT 60)
