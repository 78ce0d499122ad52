// SPDX-License-Identifier: BSD-2-Clause
// lwIP's memory and its objects as they are without a sanitizer, which brings an allocator of its own and
// instruments what the objects hold.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <elf.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "libvma/tcp/lwip/memory.h"

namespace {

namespace lwip = vma::tcp::lwip;

class LwipMemory : public ::testing::Test {
  protected:
    void SetUp() override {
        lwip::flush_thread_cache();
        used_ = lwip::memory_use().used;
    }
    void TearDown() override {
        lwip::flush_thread_cache();
        EXPECT_EQ(lwip::memory_use().used, used_) << "lwIP's memory has leaked";
    }

  private:
    std::size_t used_ = 0;
};

TEST_F(LwipMemory, ThreadsThatEndGiveTheirMemoryBack) {
    const auto work = [] {
        std::vector<void*> blocks;
        for (int i = 0; i < 200; ++i) blocks.push_back(lwip::allocate(300));
        for (void* block : blocks) lwip::deallocate(block, 300);
    };
    std::thread(work).join();
    const auto mapped = lwip::memory_use().mapped;
    for (int i = 0; i < 200; ++i) std::thread(work).join();
    EXPECT_EQ(lwip::memory_use().mapped, mapped);
}

TEST_F(LwipMemory, BlocksFreedByAnotherThreadComeBack) {
    std::vector<void*> blocks(10'000);
    std::size_t mapped = 0;
    for (int round = 0; round < 10; ++round) {
        for (void*& block : blocks) ASSERT_NE(block = lwip::allocate(300), nullptr);
        if (round == 0) mapped = lwip::memory_use().mapped;
        std::thread([&] {
            for (void* block : blocks) lwip::deallocate(block, 300);
        }).join();
    }
    EXPECT_EQ(lwip::memory_use().mapped, mapped);
}

// A handler that interrupts the allocator and uses it.
TEST_F(LwipMemory, SignalHandlersMayAllocate) {
    static std::atomic<int> handled;
    static std::atomic<void*> kept;
    handled = 0;
    struct sigaction action {
    }, before{};
    action.sa_handler = [](int) {
        void* block = lwip::allocate(40);
        if (block != nullptr) std::memset(block, 0xaa, 40);
        lwip::deallocate(kept.exchange(block), 40);
        ++handled;
    };
    ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
    itimerval timer{{0, 50}, {0, 50}}, off{};
    ASSERT_EQ(setitimer(ITIMER_REAL, &timer, nullptr), 0);
    std::vector<std::uint8_t*> blocks(200);
    for (int round = 0; handled < 500 && round < 10'000'000; ++round) {
        for (auto*& block : blocks) {
            block = static_cast<std::uint8_t*>(lwip::allocate(40));
            if (block != nullptr) std::memset(block, 0x55, 40);
        }
        for (auto* block : blocks) {
            if (block == nullptr) continue;
            ASSERT_TRUE(std::all_of(block, block + 40, [](std::uint8_t b) { return b == 0x55; }));
            lwip::deallocate(block, 40);
        }
    }
    ASSERT_EQ(setitimer(ITIMER_REAL, &off, nullptr), 0);
    ASSERT_EQ(sigaction(SIGALRM, &before, nullptr), 0);
    EXPECT_GE(handled, 500);
    lwip::deallocate(kept.exchange(nullptr), 40);
}

// The transformation has not missed a variable: what is writable in the objects is thread-local.
TEST(LwipObjects, HaveNoSharedState) {
    std::istringstream paths(VMA_LWIP_OBJECTS);
    std::string path;
    int objects = 0;
    while (std::getline(paths, path, ':')) {
        std::ifstream file(path, std::ios::binary);
        const std::string bytes((std::istreambuf_iterator<char>(file)), {});
        ASSERT_GT(bytes.size(), sizeof(Elf64_Ehdr)) << path;
        ++objects;
        const auto* elf = reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
        const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes.data() + elf->e_shoff);
        const char* const section_names = bytes.data() + sections[elf->e_shstrndx].sh_offset;
        for (int i = 0; i < elf->e_shnum; ++i) {
            if (sections[i].sh_type != SHT_SYMTAB) continue;
            const auto* symbols = reinterpret_cast<const Elf64_Sym*>(bytes.data() + sections[i].sh_offset);
            const char* const names = bytes.data() + sections[sections[i].sh_link].sh_offset;
            for (std::size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s) {
                const Elf64_Sym& symbol = symbols[s];
                if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT) continue;
                ASSERT_NE(symbol.st_shndx, SHN_COMMON) << path << ": " << names + symbol.st_name;
                if (symbol.st_shndx >= elf->e_shnum) continue;
                const Elf64_Shdr& section = sections[symbol.st_shndx];
                const bool constant =
                    std::string(section_names + section.sh_name).starts_with(".data.rel.ro");
                EXPECT_TRUE(constant || !(section.sh_flags & SHF_WRITE))
                    << path << ": " << names + symbol.st_name;
            }
        }
    }
    EXPECT_EQ(objects, 5);
}

}  // namespace
#endif
