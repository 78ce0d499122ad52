# SPDX-License-Identifier: BSD-2-Clause
# transform_lwip(FROM TO): copies what we compile of lwIP 2.1.3 from FROM (the directory with src/core) to
# TO/core and TO/include, with the few changes that let several threads be inside lwIP at once:
# - every variable becomes thread-local, so that a thread that has entered lwIP for one connection has it for
#   itself;
# - the table of the addresses of those variables, which then is no constant, becomes an expression;
# - lwIP's own tcp_output() gets another name, so that calls of it come to us.
# And four lines that are wrong, or would be with our options.
#
# Each pattern must occur exactly once, else the configuration stops and names it: a different lwIP is never
# built by luck. Files are rewritten only when they change.

# Replaces the only occurrence of `old` by `new` in the text `content` of the caller, which stands for `file`.
function(_lwip_replace file old new)
  string(FIND "${content}" "${old}" first)
  string(FIND "${content}" "${old}" last REVERSE)
  if(first EQUAL -1)
    message(FATAL_ERROR "lwIP: ${file} has no '${old}'. Only lwIP 2.1.3 can be used (LWIP_SOURCE_DIR).")
  elseif(NOT first EQUAL last)
    message(FATAL_ERROR "lwIP: ${file} has '${old}' more than once. "
      "Only lwIP 2.1.3 can be used (LWIP_SOURCE_DIR).")
  endif()
  string(REPLACE "${old}" "${new}" content "${content}")
  set(content "${content}" PARENT_SCOPE)
endfunction()

# Makes the variables thread-local that are declared by these lines; a line starts with `extern`, `static` or
# the type.
function(_lwip_thread_local file)
  foreach(line IN LISTS ARGN)
    if(line MATCHES "^(extern|static) (.*)$")
      set(changed "${CMAKE_MATCH_1} __thread ${CMAKE_MATCH_2}")
    else()
      set(changed "__thread ${line}")
    endif()
    # Up to the end of the name: none is the beginning of another's.
    _lwip_replace(${file} "\n${line};" "\n${changed};")
  endforeach()
  set(content "${content}" PARENT_SCOPE)
endfunction()

function(transform_lwip from to)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_FUNCTION_LIST_FILE})
  set(src "${from}/src")
  if(NOT EXISTS "${src}/core/tcp.c")
    message(FATAL_ERROR "lwIP: ${src}/core/tcp.c does not exist. "
      "LWIP_SOURCE_DIR is the directory with src/core.")
  endif()
  set(found "")
  if(EXISTS "${src}/include/lwip/init.h")
    file(STRINGS "${src}/include/lwip/init.h" numbers REGEX "define LWIP_VERSION_(MAJOR|MINOR|REVISION)")
    string(REGEX MATCHALL "[0-9]+" numbers "${numbers}")
    string(REPLACE ";" "." found "${numbers}")
  endif()
  if(NOT found STREQUAL "2.1.3")
    message(FATAL_ERROR "lwIP: version '${found}' in ${from}. Only lwIP 2.1.3 can be used (LWIP_SOURCE_DIR).")
  endif()

  file(GLOB_RECURSE files RELATIVE "${src}" "${src}/include/lwip/*.h")
  list(FILTER files EXCLUDE REGEX "^include/lwip/apps/")
  list(APPEND files core/tcp.c core/tcp_in.c core/tcp_out.c core/pbuf.c core/ipv4/ip4_addr.c)
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${src}/${file})
    file(READ "${src}/${file}" content)

    if(file STREQUAL "include/lwip/ip.h")
      _lwip_thread_local(${file} "extern struct ip_globals ip_data")
    elseif(file STREQUAL "include/lwip/priv/tcp_priv.h")
      _lwip_thread_local(${file}
        "extern struct tcp_pcb *tcp_input_pcb" "extern u32_t tcp_ticks" "extern u8_t tcp_active_pcbs_changed"
        "extern struct tcp_pcb *tcp_bound_pcbs" "extern union tcp_listen_pcbs_t tcp_listen_pcbs"
        "extern struct tcp_pcb *tcp_active_pcbs" "extern struct tcp_pcb *tcp_tw_pcbs")
      _lwip_replace(${file} "extern struct tcp_pcb ** const tcp_pcb_lists[NUM_TCP_PCB_LISTS];"
        "#define tcp_pcb_lists ((struct tcp_pcb **const[NUM_TCP_PCB_LISTS]){ \\
  &tcp_listen_pcbs.pcbs, &tcp_bound_pcbs, &tcp_active_pcbs, &tcp_tw_pcbs})")
    elseif(file STREQUAL "core/tcp.c")
      _lwip_thread_local(${file}
        "static u16_t tcp_port = TCP_LOCAL_PORT_RANGE_START" "u32_t tcp_ticks"
        "struct tcp_pcb *tcp_bound_pcbs" "union tcp_listen_pcbs_t tcp_listen_pcbs"
        "struct tcp_pcb *tcp_active_pcbs" "struct tcp_pcb *tcp_tw_pcbs" "u8_t tcp_active_pcbs_changed"
        "static u8_t tcp_timer" "static u8_t tcp_timer_ctr" "static u8_t tcp_ext_arg_id")
      _lwip_replace(${file} "struct tcp_pcb **const tcp_pcb_lists[] = {&tcp_listen_pcbs.pcbs, &tcp_bound_pcbs,
         &tcp_active_pcbs, &tcp_tw_pcbs
};" "/* tcp_pcb_lists: see tcp_priv.h */")
      # TCP_MSS is a variable here, which no #if can compare; what a peer without the option may be sent stays
      # 536 at most.
      _lwip_replace(${file} "#define INITIAL_MSS TCP_MSS"
        "#define INITIAL_MSS ((u16_t)LWIP_MIN(TCP_MSS, 536))")
      _lwip_replace(${file} "#if TCP_MSS > 536" "#if 0 /* TCP_MSS > 536 */")
    elseif(file STREQUAL "core/tcp_in.c")
      _lwip_thread_local(${file}
        "static struct tcp_seg inseg" "static struct tcp_hdr *tcphdr" "static u16_t tcphdr_optlen"
        "static u16_t tcphdr_opt1len" "static u8_t *tcphdr_opt2" "static u16_t tcp_optidx"
        "static u32_t seqno, ackno"
        "static tcpwnd_size_t recv_acked" "static u16_t tcplen" "static u8_t flags" "static u8_t recv_flags"
        "static struct pbuf *recv_data" "struct tcp_pcb *tcp_input_pcb")
      # An int has no room for the highest bit: undefined when the option's last byte is above 127.
      _lwip_replace(${file} "(tcp_get_next_optbyte() << 24)" "((u32_t)tcp_get_next_optbyte() << 24)")
      # An option whose length byte is missing made it read behind the header.
      _lwip_replace(${file} "u16_t optidx = tcp_optidx++;" "u16_t optidx = tcp_optidx++;
  if (optidx >= tcphdr_optlen) {
    return 0;
  }")
      # An ACK at the edge of a closed window is in order. Were it answered, two closed windows would exchange
      # ACKs for ever.
      _lwip_replace(${file}
        "if (!TCP_SEQ_BETWEEN(seqno, pcb->rcv_nxt, pcb->rcv_nxt + pcb->rcv_wnd - 1)) {"
        "if (tcplen > 0 && !TCP_SEQ_BETWEEN(seqno, pcb->rcv_nxt, pcb->rcv_nxt + pcb->rcv_wnd - 1)) {")
    elseif(file STREQUAL "core/ipv4/ip4_addr.c")
      _lwip_replace(${file} "static char str[IP4ADDR_STRLEN_MAX];"
        "static __thread char str[IP4ADDR_STRLEN_MAX];")
    elseif(file STREQUAL "core/tcp_out.c")
      _lwip_replace(${file} "err_t\ntcp_output(struct tcp_pcb *pcb)\n{"
        "err_t\nvma_lwip_original_output(struct tcp_pcb *pcb)\n{")
    endif()

    set(before "")
    if(EXISTS "${to}/${file}")
      file(READ "${to}/${file}" before)
    endif()
    if(NOT before STREQUAL content)
      file(WRITE "${to}/${file}" "${content}")
    endif()
  endforeach()
endfunction()
