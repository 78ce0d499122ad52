# SPDX-License-Identifier: BSD-2-Clause
# The wire between a simulated adapter and a netdev, and its test in namespaces of its own (root).
set(NETDEV_BPF_OBJ ${CMAKE_CURRENT_BINARY_DIR}/netdev_steer.bpf.o)
set(NETDEV_SKEL ${CMAKE_CURRENT_BINARY_DIR}/generated/netdev_steer.lskel.h)
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/generated)
execute_process(COMMAND ${CMAKE_C_COMPILER} -print-multiarch OUTPUT_VARIABLE MULTIARCH OUTPUT_STRIP_TRAILING_WHITESPACE)
find_program(BPFTOOL bpftool PATHS /usr/sbin REQUIRED)
add_custom_command(OUTPUT ${NETDEV_SKEL}
  COMMAND ${BPF_CLANG} -O2 -g -Wall -target bpf -I/usr/include/${MULTIARCH}
          -c ${CMAKE_CURRENT_LIST_DIR}/netdev_steer.bpf.c -o ${NETDEV_BPF_OBJ}
  COMMAND ${BPFTOOL} gen skeleton -L ${NETDEV_BPF_OBJ} name netdev_steer > ${NETDEV_SKEL}
  DEPENDS ${CMAKE_CURRENT_LIST_DIR}/netdev_steer.bpf.c ${CMAKE_CURRENT_LIST_DIR}/netdev_steer.h VERBATIM)
add_library(mlx5_sim_wire STATIC ${CMAKE_CURRENT_LIST_DIR}/netdev_wire.cpp ${CMAKE_CURRENT_LIST_DIR}/netdev_steer_load.c ${NETDEV_SKEL})
set_target_properties(mlx5_sim_wire PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(mlx5_sim_wire PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/generated)
target_link_libraries(mlx5_sim_wire PUBLIC mlx5_sim_nic)

add_executable(netdev_wire_test ${CMAKE_CURRENT_LIST_DIR}/netdev_wire_test.cpp ${CMAKE_CURRENT_LIST_DIR}/nic_rig.cpp)
target_link_libraries(netdev_wire_test PRIVATE mlx5_sim_wire test_support GTest::gtest_main GTest::gmock)
gtest_discover_tests(netdev_wire_test PROPERTIES LABELS integration RUN_SERIAL TRUE TIMEOUT 120 DISCOVERY_TIMEOUT 60)
