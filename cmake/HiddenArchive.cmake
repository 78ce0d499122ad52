# SPDX-License-Identifier: BSD-2-Clause
# Makes a distribution's static library usable inside a shared library.
#
# Debian builds libnl's archives without -fPIC for a PIE: code is position independent, but libc's stderr and
# stdout are read as if they were local. Renaming those two symbols in a copy of the archive lets us supply
# local ones (libvma/net/libnl_stdio.c), so the library needs no DT_NEEDED entry and leaks no symbol into the
# program. getenv is renamed too: libnl's constructors read NLDBG and NLCB, and would then print where nobody
# asked for it.
function(add_hidden_archive name file)
  find_library(${name}_ARCHIVE ${file} REQUIRED)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/hidden_${file})
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_OBJCOPY} --redefine-sym stderr=vma_nl_stderr --redefine-sym stdout=vma_nl_stdout
            --redefine-sym getenv=vma_nl_getenv
            ${${name}_ARCHIVE} ${out}
    DEPENDS ${${name}_ARCHIVE} VERBATIM)
  add_custom_target(${name}_copy DEPENDS ${out})
  add_library(${name} STATIC IMPORTED GLOBAL)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${out})
  add_dependencies(${name} ${name}_copy)
endfunction()
