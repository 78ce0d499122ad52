# SPDX-License-Identifier: BSD-2-Clause
# Precompiled headers, which save about a third of the time of compiling:
#
#   precompile_headers(TARGET HEADERS... | REUSE_FROM OTHER)
#
# Only headers of the standard library and of other projects: they never change, so no source is compiled
# again because of them. REUSE_FROM takes the other target's, whose options of the compiler have to be the
# same, also -O and what is defined: g++ fails otherwise. Few headers serve better than many, and none better
# for less than some ten sources: a precompiled header takes 4 s.
#
# Each source still includes what it uses; VMA_PCH=OFF builds without. That is the default where the compiler
# is called through a launcher: ccache keeps nothing of what was compiled with a precompiled header unless it
# is told to be sloppy.
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(_vma_pch OFF)
else()
  set(_vma_pch ON)
endif()
option(VMA_PCH "Precompiled headers" ${_vma_pch})

# What most sources include.
set(PCH_STANDARD <algorithm> <array> <atomic> <chrono> <cstring> <functional> <map> <memory> <mutex>
  <optional> <span> <string> <string_view> <utility> <vector>)
set(PCH_TESTS ${PCH_STANDARD} <filesystem> <fstream> <random> <set> <sstream> <thread> <gtest/gtest.h>)

function(precompile_headers target)
  if(NOT VMA_PCH)
    return()
  endif()
  if(ARGV1 STREQUAL "REUSE_FROM")
    target_precompile_headers(${target} REUSE_FROM ${ARGV2})
    return()
  endif()
  set(headers "")
  foreach(header IN LISTS ARGN)
    # A ">" would end the generator expression.
    string(REPLACE ">" "$<ANGLE-R>" header "${header}")
    list(APPEND headers "$<$<COMPILE_LANGUAGE:CXX>:${header}>")
  endforeach()
  target_precompile_headers(${target} PRIVATE ${headers})
endfunction()

# Several sources in one translation unit, which halves the time of compiling once more:
#
#   compile_together(TARGET [SOURCES...])
#
# All sources of TARGET, except SOURCES: those that need headers which do not go with others', and generated
# ones. A name in an unnamed namespace must be unique in the target. Off where precompiled headers are, so
# that a source is compiled again alone.
option(VMA_UNITY "Several sources in one translation unit" ${_vma_pch})

function(compile_together target)
  if(NOT VMA_UNITY)
    return()
  endif()
  # A large target has enough units for all processors even so.
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  set(batch 10)
  if(count GREATER 100)
    set(batch 20)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
  if(ARGN)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

function(compile_folder_together target)
  if(NOT VMA_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  string(MAKE_C_IDENTIFIER ${CMAKE_CURRENT_SOURCE_DIR} folder)
  set(place 0)
  foreach(source IN LISTS ARGN)
    math(EXPR group "${place} / 16")
    math(EXPR place "${place} + 1")
    set_source_files_properties(${source} TARGET_DIRECTORY ${target}
      PROPERTIES UNITY_GROUP ${folder}_${group})
  endforeach()
endfunction()
