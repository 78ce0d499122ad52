# SPDX-License-Identifier: BSD-2-Clause
# Runs at the end of `cmake --install`. Puts libvma.conf where the library reads it, which does not depend on
# the prefix, and makes the library known to the loader. Expects VMA_CONFIG_SOURCE, VMA_LIBRARY_DIR
# (absolute), VMA_EXAMPLE_DIR (absolute).
set(target /etc/libvma.conf)
set(place "$ENV{DESTDIR}${target}")
get_filename_component(folder "${place}" DIRECTORY)
file(MAKE_DIRECTORY "${folder}")
execute_process(COMMAND test -w "${folder}" RESULT_VARIABLE unwritable)
if(EXISTS "${place}")
  # An administrator may have changed it.
  execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files "${VMA_CONFIG_SOURCE}" "${place}"
    RESULT_VARIABLE differs OUTPUT_QUIET ERROR_QUIET)
  if(differs)
    message(STATUS "Kept: ${place} differs from the project's, which is ${VMA_EXAMPLE_DIR}/libvma.conf")
  else()
    message(STATUS "Up-to-date: ${place}")
  endif()
elseif(unwritable)
  message(WARNING "${place} is not installed: no permission to write to ${folder}. "
    "The library works without it.")
else()
  file(INSTALL DESTINATION "/etc" TYPE FILE FILES "${VMA_CONFIG_SOURCE}")
endif()

# LD_PRELOAD=libvma.so, without a folder, is found by way of the loader's cache. A staged installation
# (DESTDIR) is somebody else's to finish.
if("$ENV{DESTDIR}" STREQUAL "")
  find_program(LDCONFIG ldconfig PATHS /sbin /usr/sbin)
  if(LDCONFIG)
    execute_process(COMMAND ${LDCONFIG} OUTPUT_QUIET ERROR_QUIET)
    execute_process(COMMAND ${LDCONFIG} -p OUTPUT_VARIABLE known ERROR_QUIET)
  endif()
  if(known MATCHES "=> ${VMA_LIBRARY_DIR}/libvma\\.so")
    message(STATUS "LD_PRELOAD=libvma.so works now")
  else()
    message(STATUS "The loader does not look into ${VMA_LIBRARY_DIR}: "
      "write LD_PRELOAD=${VMA_LIBRARY_DIR}/libvma.so")
  endif()
endif()
