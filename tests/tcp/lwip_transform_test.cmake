# SPDX-License-Identifier: BSD-2-Clause
# cmake -DFROM=<lwIP> -DWORK=<directory> -P lwip_transform_test.cmake
# The transformation of lwIP's sources (cmake/transform_lwip.cmake) stops at a lwIP it was not written for,
# and says why.
cmake_minimum_required(VERSION 3.20)
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/transform_lwip.cmake)

if(DEFINED ONE)
  transform_lwip("${WORK}/from" "${WORK}/to")
  return()
endif()

# Transforms a copy in which `old` in `file` was replaced by `new`; the output must match `expected`, and the
# result be success or not as `succeeds` says.
function(check file old new succeeds expected)
  file(REMOVE_RECURSE "${WORK}")
  file(MAKE_DIRECTORY "${WORK}/from")
  file(COPY "${FROM}/src" DESTINATION "${WORK}/from")
  file(READ "${FROM}/src/${file}" text)
  string(REPLACE "${old}" "${new}" changed "${text}")
  if(changed STREQUAL text AND NOT old STREQUAL "")
    message(FATAL_ERROR "'${old}' is not in ${file}")
  endif()
  file(WRITE "${WORK}/from/src/${file}" "${changed}")
  execute_process(COMMAND ${CMAKE_COMMAND} -DONE=1 -DWORK=${WORK} -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(succeeds AND NOT status EQUAL 0 OR NOT succeeds AND status EQUAL 0 OR NOT output MATCHES "${expected}")
    message(FATAL_ERROR "${file} with '${new}' for '${old}': status ${status}, '${output}', "
      "expected '${expected}'")
  endif()
endfunction()

check(core/tcp.c "" "" TRUE "^$")
check(core/tcp.c "u32_t tcp_ticks;" "u64_t tcp_ticks;" FALSE "core/tcp.c has no .*tcp_ticks")
check(core/tcp_in.c "static u16_t tcplen;" "static u16_t tcplen;\nstatic u16_t tcplen;" FALSE
  "core/tcp_in.c has .*tcplen.* more than once")
check(core/tcp_out.c "err_t\ntcp_output(" "err_t tcp_output(" FALSE "core/tcp_out.c has no .*tcp_output")
check(include/lwip/priv/tcp_priv.h "extern u32_t tcp_ticks;" "" FALSE "tcp_priv.h has no .*LWIP_SOURCE_DIR")
check(include/lwip/init.h "LWIP_VERSION_REVISION   3" "LWIP_VERSION_REVISION   2" FALSE "version '2.1.2'")
file(REMOVE_RECURSE "${WORK}")
