# SPDX-License-Identifier: BSD-2-Clause
# Registers the cases of a GoogleTest executable in groups, each of which ctest runs as one process:
#
#   add_grouped_tests(TARGET BY SUITE|THEME [PREFIX text] [WITHOUT theme] [ONLY theme]
#     [ENVIRONMENT NAME=value ...] [PROPERTIES name value ...])
#
# gtest_discover_tests() gives each case a process of its own. Where cases are short and share what is
# expensive to set up (two network namespaces, a sanitizer's start), most of the time goes there.
#   SUITE   a group is a test suite
#   THEME   a group is the cases of a suite whose parameter's name begins with the same word:
#           "SameAsKernel/bind_busy_port" is of the theme "bind"
# WITHOUT leaves the groups of one theme out, ONLY all others.
# A group is called PREFIX and then "Suite" or "Suite.theme". What its cases did stands in test-results/ of
# the build directory, a file in GoogleTest's XML for each group, so a failure is known by its case
# (tests/summary.py reads them).
set(GROUP_TESTS_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(add_grouped_tests target)
  cmake_parse_arguments(PARSE_ARGV 1 GROUP "" "BY;PREFIX;WITHOUT;ONLY" "ENVIRONMENT;PROPERTIES")
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_${GROUP_PREFIX}groups.cmake)
  # Lists cannot be arguments of a command as they are.
  string(REPLACE ";" "|" properties "${GROUP_PROPERTIES}")
  string(REPLACE ";" "|" environment "${GROUP_ENVIRONMENT}")
  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -D EXECUTABLE=$<TARGET_FILE:${target}> -D BY=${GROUP_BY}
      -D "PREFIX=${GROUP_PREFIX}" -D "WITHOUT=${GROUP_WITHOUT}" -D "ONLY=${GROUP_ONLY}"
      -D "ENVIRONMENT=${environment}"
      -D "PROPERTIES=${properties}" -D RESULTS=${CMAKE_BINARY_DIR}/test-results -D FILE=${file}
      -P ${GROUP_TESTS_SCRIPT}
    BYPRODUCTS ${file} VERBATIM)
  set(include ${CMAKE_CURRENT_BINARY_DIR}/${target}_${GROUP_PREFIX}include.cmake)
  file(WRITE ${include} "if(EXISTS \"${file}\")\n  include(\"${file}\")\nelse()\n"
    "  add_test(${target}_NOT_BUILT ${target}_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${include})
endfunction()

# From here on: the script that runs when the executable has been linked.
if(NOT CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  return()
endif()

execute_process(COMMAND ${EXECUTABLE} --gtest_list_tests OUTPUT_VARIABLE output RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${EXECUTABLE} --gtest_list_tests failed: ${output}")
endif()
# Parameters are shown behind a "#", with any characters.
string(REGEX REPLACE "[ \t]*#[^\n]*" "" output "${output}")
string(REGEX MATCHALL "[^\n]+" lines "${output}")
set(names "")
foreach(line IN LISTS lines)
  if(line MATCHES "^([^ ]+)\\.$")
    set(suite ${CMAKE_MATCH_1})
  elseif(line MATCHES "^  ([^ ]+)$")
    set(case ${CMAKE_MATCH_1})
    if(BY STREQUAL THEME AND case MATCHES "^([^/]+)/([^_]+)_")
      if(WITHOUT STREQUAL CMAKE_MATCH_2 OR (ONLY AND NOT ONLY STREQUAL CMAKE_MATCH_2))
        continue()
      endif()
      set(name ${suite}.${CMAKE_MATCH_2})
      set(filter_${name} "${suite}.${CMAKE_MATCH_1}/${CMAKE_MATCH_2}_*")
    else()
      set(name ${suite})
      set(filter_${name} "${suite}.*")
    endif()
    list(APPEND names ${name})
    if(NOT DEFINED count_${name})
      set(count_${name} 0)
    endif()
    math(EXPR count_${name} "${count_${name}} + 1")
  endif()
endforeach()
list(REMOVE_DUPLICATES names)
string(REPLACE "|" ";" PROPERTIES "${PROPERTIES}")
string(REPLACE "|" ";" ENVIRONMENT "${ENVIRONMENT}")
file(MAKE_DIRECTORY ${RESULTS})
set(script "")
foreach(name IN LISTS names)
  string(REPLACE "/" "." result_file "${PREFIX}${name}")
  # Groups with many cases first: they would make everybody wait in the end.
  string(APPEND script
    "add_test([=[${PREFIX}${name}]=] ${EXECUTABLE} [=[--gtest_filter=${filter_${name}}]=])\n"
    "set_tests_properties([=[${PREFIX}${name}]=] PROPERTIES COST ${count_${name}} ENVIRONMENT "
    "[=[GTEST_OUTPUT=xml:${RESULTS}/${result_file}.xml;${ENVIRONMENT}]=]")
  foreach(property IN LISTS PROPERTIES)
    string(APPEND script " [=[${property}]=]")
  endforeach()
  string(APPEND script ")\n")
endforeach()
file(WRITE ${FILE} "${script}")
