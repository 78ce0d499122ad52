# SPDX-License-Identifier: BSD-2-Clause
# lwIP, the TCP engine: where its sources come from and how they are compiled.
#
# They are not in this repository and are not edited by hand. By default they are the distribution's source
# package, fetched once per machine (cmake/fetch_lwip); LWIP_SOURCE_DIR names an unpacked lwIP 2.1.3 instead.
# While configuring, copies go through a checked transformation (cmake/transform_lwip.cmake) into the build
# tree. Why and how lwIP is then entered: libvma/tcp/lwip/glue.h.
#
# Sets LWIP_SOURCES (to be compiled), LWIP_INCLUDES (system include directories), and the sources' properties.
set(LWIP_SOURCE_DIR "" CACHE PATH
  "Unpacked lwIP 2.1.3 (the directory with src/core); empty: the distribution's")

set(_lwip_from "${LWIP_SOURCE_DIR}")
if(NOT _lwip_from)
  if(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
    set(_lwip_cache "$ENV{XDG_CACHE_HOME}/libvma/lwip-2.1.3")
  elseif(NOT "$ENV{HOME}" STREQUAL "")
    set(_lwip_cache "$ENV{HOME}/.cache/libvma/lwip-2.1.3")
  else()
    set(_lwip_cache "${CMAKE_BINARY_DIR}/lwip-2.1.3")
  endif()
  set(_lwip_from "${_lwip_cache}/source")
  if(NOT EXISTS "${_lwip_from}/src/core/tcp.c")
    message(STATUS "Fetching the source package of lwIP into ${_lwip_cache}")
    execute_process(COMMAND ${CMAKE_SOURCE_DIR}/cmake/fetch_lwip ${_lwip_cache}
      RESULT_VARIABLE _lwip_status ERROR_VARIABLE _lwip_errors)
    if(NOT _lwip_status EQUAL 0)
      message(FATAL_ERROR "The sources of lwIP 2.1.3 could not be fetched:\n${_lwip_errors}\n"
        "Unpack them yourself and configure with -DLWIP_SOURCE_DIR=<the directory with src/core>.")
    endif()
  endif()
endif()

set(LWIP_ORIGINAL "${_lwip_from}" CACHE INTERNAL "Where the sources of lwIP were found")
set(LWIP_COPY ${CMAKE_CURRENT_BINARY_DIR}/lwip)
include(${CMAKE_SOURCE_DIR}/cmake/transform_lwip.cmake)
transform_lwip("${_lwip_from}" "${LWIP_COPY}")

# The units of ours include core/tcp*.c; the other two are compiled as they are.
set(LWIP_SOURCES
  ${CMAKE_CURRENT_SOURCE_DIR}/tcp/lwip/tcp_unit.c
  ${CMAKE_CURRENT_SOURCE_DIR}/tcp/lwip/tcp_in_unit.c
  ${CMAKE_CURRENT_SOURCE_DIR}/tcp/lwip/tcp_out_unit.c
  ${LWIP_COPY}/core/pbuf.c
  ${LWIP_COPY}/core/ipv4/ip4_addr.c)
set(LWIP_INCLUDES ${LWIP_COPY}/include ${CMAKE_CURRENT_SOURCE_DIR}/tcp/lwip/port)
# Warnings about code that is not ours help nobody here.
set_source_files_properties(${LWIP_SOURCES} PROPERTIES COMPILE_OPTIONS "-w"
  INCLUDE_DIRECTORIES "${LWIP_COPY}")
