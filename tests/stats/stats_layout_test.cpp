// SPDX-License-Identifier: BSD-2-Clause
// docs/statistics.md lists where each field of the statistics file stands, for readers in other languages. It
// is checked here, and so is that nothing moves unnoticed.
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>

#include "libvma/stats/layout.h"

namespace {

using namespace vma::stats;

struct Field {
    const char* name;
    std::size_t offset;
};

std::string paragraph(const char* block, std::size_t size, std::initializer_list<Field> fields) {
    std::ostringstream text;
    text << block << ", " << size << " bytes: ";
    const char* separator = "";
    for (const Field& field : fields) {
        text << separator << field.name << ' ' << field.offset;
        separator = ", ";
    }
    text << '.';
    return text.str();
}

// Lines of the document are at most 110 columns wide, so where a line ends means nothing.
std::string one_line(std::istream& in) {
    std::string text, word;
    while (in >> word) text += ' ' + word;
    return text + ' ';
}

TEST(StatsLayout, DocumentIsCurrent) {
    const std::string path =
        std::string(__FILE__).substr(0, std::string(__FILE__).rfind("/tests/")) + "/docs/statistics.md";
    std::ifstream file(path);
    const std::string document = one_line(file);
    auto expect = [&](const std::string& text) {
        EXPECT_NE(document.find(' ' + text + ' '), std::string::npos)
            << "docs/statistics.md must have, over one line or several,\n"
            << text;
    };
#define F(name) {#name, offsetof(Header, name)}
    expect(paragraph("Header", sizeof(Header),
                     {F(magic), F(version), F(header_size), F(file_size), F(pid), F(uid), F(start_ticks),
                      F(started_ns), F(life), F(log_level), F(log_details), F(zeroed), F(sockets_unseen),
                      F(program), F(library), F(command_socket), F(pid_namespace), F(sections)}));
#undef F
#define F(name) {#name, offsetof(SectionEntry, name)}
    expect(paragraph("SectionEntry", sizeof(SectionEntry), {F(kind), F(block_size), F(blocks), F(offset)}));
#undef F
#define F(name) {#name, offsetof(Address, name)}
    expect(paragraph("Address", sizeof(Address), {F(bytes), F(port), F(family)}));
#undef F
#define F(name) {#name, offsetof(Traffic, name)}
    expect(paragraph("Traffic", sizeof(Traffic), {F(packets), F(bytes), F(eagain), F(errors)}));
#undef F
#define F(name) {#name, offsetof(SocketBlock, name)}
    expect(paragraph("SocketBlock", sizeof(SocketBlock),
                     {
                         F(sequence), F(state),          F(id),        F(fd),
                         F(type),     F(family),         F(tcp_state), F(inode),
                         F(rx_path),  F(tx_path),        F(rx_reason), F(tx_reason),
                         F(blocking), F(multicast_loop), F(ring),      F(ifindex),
                         F(device),   F(local),          F(peer),      F(multicast_interface),
                         F(rule),     F(detail),         F(rx_thread), F(tx_thread),
#define VMA_SOCKET_NUMBER(member, ...) F(member),
#define VMA_SOCKET_TRAFFIC(member, ...) F(member),
#include "libvma/stats/numbers.def"
                     }));
#undef F
#define F(name) {#name, offsetof(TotalsBlock, name)}
    expect(paragraph("TotalsBlock", sizeof(TotalsBlock),
                     {
#define VMA_TOTALS_NUMBER(member, ...) F(member),
#define VMA_TOTALS_TRAFFIC(member, ...) F(member),
#include "libvma/stats/numbers.def"
                     }));
#undef F
#define F(name) {#name, offsetof(RingBlock, name)}
    expect(paragraph("RingBlock", sizeof(RingBlock),
                     {
                         F(sequence),
                         F(state),
                         F(ifindex),
                         F(lane),
                         F(interface),
                         F(device),
#define VMA_RING_NUMBER(member, ...) F(member),
#define VMA_RING_DROPS(member) F(member),
#define VMA_RING_LAST_NUMBER(...)
#include "libvma/stats/numbers.def"
                         F(logic),
                         F(sockets),
                         F(owner),
#define VMA_RING_LAST_NUMBER(member, ...) F(member),
#include "libvma/stats/numbers.def"
                         F(details),
                     }));
#undef F
#define F(name) {#name, offsetof(PoolBlock, name)}
    expect(paragraph("PoolBlock", sizeof(PoolBlock),
                     {
                         F(sequence),
                         F(state),
                         F(ring),
                         F(direction),
#define VMA_POOL_NUMBER(member, ...) F(member),
#include "libvma/stats/numbers.def"
                     }));
#undef F
#define F(name) {#name, offsetof(MuxBlock, name)}
    expect(paragraph("MuxBlock", sizeof(MuxBlock),
                     {
                         F(sequence),
                         F(state),
                         F(id),
                         F(kind),
                         F(fd),
                         F(thread),
#define VMA_MUX_NUMBER(member, ...) F(member),
#include "libvma/stats/numbers.def"
                     }));
#undef F
#define F(name) {#name, offsetof(GroupBlock, name)}
    expect(paragraph("GroupBlock", sizeof(GroupBlock),
                     {
                         F(sequence),
                         F(state),
                         F(socket_id),
                         F(fd),
                         F(path),
                         F(group),
                         F(source),
                         F(detail),
                         F(ifindex),
                         F(interface),
#define VMA_GROUP_NUMBER(member, ...) F(member),
#include "libvma/stats/numbers.def"
                     }));
#undef F
#define F(name) {#name, offsetof(ParameterBlock, name)}
    expect(paragraph("ParameterBlock", sizeof(ParameterBlock), {F(name), F(value), F(origin)}));
#undef F
}

}  // namespace
