// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/user_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <thread>

namespace vma::sockets {
namespace {

constexpr std::size_t kPage = 4096;

class Mapping {
  public:
    Mapping(std::size_t pages, int fd) : length_(pages * kPage) {
        at_ = static_cast<char*>(mmap(nullptr, length_, PROT_READ | PROT_WRITE,
                                      fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0));
    }
    ~Mapping() { munmap(at_, length_); }
    char* at(std::size_t page) const { return at_ + page * kPage; }
    explicit operator bool() const { return at_ != MAP_FAILED; }

  private:
    std::size_t length_;
    char* at_;
};

void expect(char* at, std::size_t length, bool readable, bool writable) {
    EXPECT_EQ(UserMemory::readable(at, length), readable);
    EXPECT_EQ(UserMemory::writable(at, length), writable);
}

TEST(UserMemory, AsTheProtectionSays) {
    Mapping m(40, -1);
    ASSERT_TRUE(m);
    mprotect(m.at(1), kPage, PROT_READ);
    mprotect(m.at(2), kPage, PROT_NONE);
    expect(m.at(0), kPage, true, true);
    expect(m.at(0) + 100, SIZE_MAX - 99, false, false);  // the end of the address space, and behind it
    expect(m.at(0) + 100, SIZE_MAX, false, false);
    expect(m.at(1) + 5, 10, true, false);
    expect(m.at(2), 1, false, false);
    expect(m.at(0) + 1, 2 * kPage, false, false);
    expect(m.at(0), 40 * kPage, false, false);
    expect(m.at(3), 37 * kPage, true, true);
    expect(nullptr, 1, false, false);
    expect(nullptr, 0, true, true);
}

// Buffers at a distance of a power of two. What is remembered stays so when the page goes, which shows here
// that the kernel is not asked again.
TEST(UserMemory, PagesThatShareAnEntryAreAllRemembered) {
    Mapping m(129, -1);
    ASSERT_TRUE(m);
    std::jthread([&] {  // one that remembers no page of other tests
        for (std::size_t page : {0, 32, 64, 128}) expect(m.at(page), 100, true, true);
        mprotect(m.at(0), 129 * kPage, PROT_NONE);
        for (int i = 0; i < 2; i++)
            for (std::size_t page : {0, 32, 64, 128}) expect(m.at(page), 100, true, true);
        expect(m.at(96), 100, false, false);
    });
}

// A pool of buffers side by side is one range, however many entries it takes.
TEST(UserMemory, APoolOfPagesIsRemembered) {
    constexpr std::size_t kPages = 300;
    Mapping m(kPages, -1);
    ASSERT_TRUE(m);
    std::jthread([&] {
        for (int i = 0; i < 2; i++)
            for (std::size_t page = 0; page < kPages; page++) expect(m.at(page), 100, true, true);
        mprotect(m.at(0), kPages * kPage, PROT_NONE);
        for (std::size_t page = 0; page < kPages; page++) expect(m.at(page), 100, true, true);
    });
}

// process_vm_readv(2) refuses it, the kernel's own copies do not.
TEST(UserMemory, Secret) {
    const auto fd = static_cast<int>(syscall(SYS_memfd_secret, 0));
    if (fd < 0) GTEST_SKIP() << "this kernel gives no secret memory: " << strerror(errno);
    ASSERT_EQ(ftruncate(fd, 20 * kPage), 0);
    Mapping m(20, fd);
    close(fd);
    if (!m) GTEST_SKIP() << "no secret memory: " << strerror(errno);
    memset(m.at(0), 0x5a, 2 * kPage);
    expect(m.at(0) + kPage - 3, 6, true, true);  // odd addresses, the last bytes of a page
    expect(m.at(0) + 17, 20 * kPage - 17, true, true);
    for (std::size_t i = 0; i < 2 * kPage; i++) ASSERT_EQ(*(m.at(0) + i), 0x5a) << i;
}

}  // namespace
}  // namespace vma::sockets
