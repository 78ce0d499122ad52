# SPDX-License-Identifier: BSD-2-Clause
# The library's own rdma device, by plain verbs and with direct queues, on two simulated adapters: one process, stepped by the test.
file(GLOB RDMA_DEVICE_TESTS CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/rdma_*.cpp)
add_executable(rdma_device_tests ${RDMA_DEVICE_TESTS})
target_link_libraries(rdma_device_tests PRIVATE -Wl,--no-as-needed mlx5_sim -Wl,--as-needed vma_core nl_core Threads::Threads
  GTest::gtest GTest::gmock)
# The tracer's own parts, too, but for what is among the library's.
target_sources(rdma_device_tests PRIVATE $<TARGET_OBJECTS:vma_core> $<FILTER:$<TARGET_OBJECTS:vma_trace_objects>,EXCLUDE,clock>)
gtest_discover_tests(rdma_device_tests PROPERTIES LABELS unit DISCOVERY_TIMEOUT 60)
