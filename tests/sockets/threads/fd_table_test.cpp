// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/fd_table.h"

#include <gtest/gtest.h>
#include <limits.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "libvma/runtime/region.h"

namespace {

using namespace vma::sockets;

// Counts what the table does to it. Its memory outlives the references, as the table's readers require.
class Probe : public FdObject {
  public:
    explicit Probe(Kind kind = Kind::epoll) : FdObject(kind) {}
    void last_fd_closed() noexcept override {
        errno = EDOM;  // nothing of this may reach the program
        closed++;
    }
    void recycle() noexcept override { recycled++; }
    std::uint32_t refs() const { return refs_.load(); }
    void revive() { refs_.store(1); }
    std::atomic<int> closed{0}, recycled{0};
};

struct FdTableTest : ::testing::Test {
    std::unique_ptr<FdTable> table = std::make_unique<FdTable>();
};

TEST_F(FdTableTest, AnyNumberMayBeAskedFor) {
    for (int fd :
         {0, 1, -1, 1023, 1024, INT_MAX, INT_MIN, static_cast<int>(FdTable::kLeaf * FdTable::kTop)}) {
        EXPECT_EQ(table->peek(fd), nullptr) << fd;
        EXPECT_FALSE(table->find(fd)) << fd;
        EXPECT_FALSE(table->socket(fd)) << fd;
        table->remove(fd);
        table->drop_stale(fd);
    }
    EXPECT_FALSE(table->any());
}

TEST_F(FdTableTest, NumbersOutsideAreRefused) {
    Probe p;
    EXPECT_FALSE(table->insert(-1, &p));
    EXPECT_FALSE(table->insert(INT_MAX, &p));
    EXPECT_FALSE(table->insert(FdTable::kLeaf * FdTable::kTop, &p));
    EXPECT_EQ(p.refs(), 1u);
    EXPECT_FALSE(table->any());
    EXPECT_TRUE(table->insert(FdTable::kLeaf * FdTable::kTop - 1, &p));
    table->remove(FdTable::kLeaf * FdTable::kTop - 1);
    EXPECT_EQ(p.closed, 1);
}

TEST_F(FdTableTest, TheTableHoldsOneReferenceForEachNumber) {
    Probe p;
    ASSERT_TRUE(table->insert(5, &p));
    ASSERT_TRUE(table->insert(5000, &p));
    EXPECT_EQ(p.refs(), 3u);
    {
        auto found = table->find(5);
        EXPECT_EQ(found.get(), &p);
        EXPECT_EQ(p.refs(), 4u);
    }
    EXPECT_EQ(p.refs(), 3u);
    table->remove(5);
    EXPECT_EQ(p.closed, 0) << "still open under the other number";
    EXPECT_FALSE(table->find(5));
    EXPECT_TRUE(table->find(5000));
    EXPECT_TRUE(table->any());
    table->remove(5000);
    EXPECT_EQ(p.closed, 1);
    EXPECT_EQ(p.recycled, 0) << "the creator's reference is left";
    EXPECT_FALSE(table->any());
    p.unref();
    EXPECT_EQ(p.recycled, 1);
}

TEST_F(FdTableTest, ARunningCallKeepsTheObject) {
    Probe p;
    ASSERT_TRUE(table->insert(7, &p));
    p.unref();
    {
        auto call = table->find(7);
        table->remove(7);
        EXPECT_EQ(p.closed, 1);
        EXPECT_EQ(p.recycled, 0);
    }
    EXPECT_EQ(p.recycled, 1);
}

TEST_F(FdTableTest, InsertDropsWhatWasStale) {
    Probe old, fresh;
    ASSERT_TRUE(table->insert(9, &old));
    ASSERT_TRUE(table->insert(9, &fresh));
    EXPECT_EQ(old.closed, 1);
    EXPECT_EQ(old.refs(), 1u);
    EXPECT_EQ(table->peek(9), &fresh);
    table->drop_stale(9);
    EXPECT_EQ(table->peek(9), nullptr);
    EXPECT_EQ(fresh.closed, 1);
    EXPECT_FALSE(table->any());
}

TEST_F(FdTableTest, RemovingLeavesErrnoAlone) {
    Probe p;
    ASSERT_TRUE(table->insert(3, &p));
    errno = ENOTTY;
    table->remove(3);
    EXPECT_EQ(errno, ENOTTY);
}

// Its kernel's socket must not be seen between the library's close and the kernel's.
class Hidden : public Socket {
  public:
    Readiness readiness() const noexcept override { return Readiness::ours; }

  protected:
    void recycle() noexcept override {}
};

TEST(ClosingNumber, ACallWaitsForTheKernelHoweverLongThatTakes) {
    Hidden socket;
    constexpr int kFd = 700;
    ASSERT_TRUE(g_fds.insert(kFd, &socket));
    ASSERT_TRUE(g_fds.close(kFd));
    ASSERT_TRUE(FdTable::is_closing(g_fds.peek(kFd)));
    std::atomic<bool> kernel_knows{false};
    std::thread closing([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        kernel_knows = true;
        g_fds.closed(kFd);
    });
    const auto found = g_fds.socket(kFd);
    ASSERT_TRUE(found);
    errno = 0;
    EXPECT_EQ(found->sendto(kFd, "x", 1, 0, nullptr, 0), -1);
    EXPECT_EQ(errno, vma::runtime::kRestart) << "what the number means now is the next look's";
    EXPECT_TRUE(kernel_knows);
    closing.join();
}

TEST_F(FdTableTest, OnlySocketsAreSockets) {
    Probe p(Kind::epoll);
    ASSERT_TRUE(table->insert(4, &p));
    EXPECT_TRUE(table->find(4));
    EXPECT_FALSE(table->socket(4));
    EXPECT_EQ(p.refs(), 2u);
    table->remove(4);
}

TEST_F(FdTableTest, VisitsARange) {
    Probe p;
    for (int fd : {0, 3, 1023, 1024, 4096, 9999}) ASSERT_TRUE(table->insert(fd, &p));
    std::vector<int> seen;
    table->for_each(3, 4096, [&](int fd, FdObject*) { seen.push_back(fd); });
    EXPECT_EQ(seen, (std::vector<int>{3, 1023, 1024, 4096}));
    seen.clear();
    table->for_each(0, UINT_MAX, [&](int fd, FdObject*) { seen.push_back(fd); });
    EXPECT_EQ(seen.size(), 6u);
    table->for_each(0, UINT_MAX, [&](int fd, FdObject*) { table->remove(fd); });
    EXPECT_FALSE(table->any());
    EXPECT_EQ(p.refs(), 1u);
}

TEST_F(FdTableTest, AForkedChildForgetsWithoutTouching) {
    Probe p;
    for (int fd = 0; fd < 3000; fd += 7) ASSERT_TRUE(table->insert(fd, &p));
    std::uint32_t refs = p.refs();
    table->clear_in_child();
    EXPECT_EQ(p.refs(), refs);
    EXPECT_EQ(p.closed, 0);
    EXPECT_FALSE(table->any());
    for (int fd = 0; fd < 3000; fd += 7) EXPECT_EQ(table->peek(fd), nullptr);
}

TEST_F(FdTableTest, GrowsFromManyThreads) {
    constexpr int kThreads = 4, kLeaves = 64;
    std::vector<std::unique_ptr<Probe>> probes;
    for (int i = 0; i < kThreads; i++) probes.push_back(std::make_unique<Probe>());
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; t++)
        threads.emplace_back([&, t] {
            for (int leaf = 0; leaf < kLeaves; leaf++)
                EXPECT_TRUE(table->insert(leaf * static_cast<int>(FdTable::kLeaf) + t, probes[t].get()));
        });
    for (auto& t : threads) t.join();
    for (int leaf = 0; leaf < kLeaves; leaf++)
        for (int t = 0; t < kThreads; t++)
            EXPECT_EQ(table->peek(leaf * static_cast<int>(FdTable::kLeaf) + t), probes[t].get());
    for (auto& p : probes) EXPECT_EQ(p->refs(), 1u + kLeaves);
}

// Readers race with a writer that keeps replacing what two numbers mean, reusing two objects' memory as a
// class's free list does. A reader must never hold an object whose last reference is gone.
TEST_F(FdTableTest, FindRacesWithRemoveAndReuse) {
    class Reused : public FdObject {
      public:
        Reused() : FdObject(Kind::epoll) {}
        void last_fd_closed() noexcept override {}
        void recycle() noexcept override { alive.store(false); }
        void revive() {
            alive.store(true);
            refs_.store(1);
        }
        std::atomic<bool> alive{true};
    };
    Reused objects[2];
    std::atomic<bool> stop{false};
    std::atomic<long> found{0}, wrong{0};
    std::vector<std::thread> readers;
    for (int r = 0; r < 3; r++)
        readers.emplace_back([&] {
            while (!stop)
                for (int fd : {10, 2000})
                    if (auto object = table->find(fd)) {
                        found++;
                        if (!static_cast<Reused*>(object.get())->alive) wrong++;
                    }
        });
    for (int i = 0; i < 20000 || found < 1000; i++) {
        Reused& o = objects[i & 1];
        ASSERT_TRUE(table->insert(10, &o));
        ASSERT_TRUE(table->insert(2000, &o));
        table->remove(10);
        table->remove(2000);
        o.unref();
        while (o.alive) std::this_thread::yield();  // the last reader lets go
        o.revive();
    }
    stop = true;
    for (auto& t : readers) t.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_GE(found, 1000);
    EXPECT_FALSE(table->any());
}

// dup() in the process's own table.
TEST(FdTableDup, ACopyMeansTheSameObject) {
    constexpr int kOld = 100001, kNew = 100002;
    Probe p, stale;
    ASSERT_TRUE(g_fds.insert(kOld, &p));
    ASSERT_TRUE(g_fds.insert(kNew, &stale));
    on_dup(kOld, kNew);
    EXPECT_EQ(stale.closed, 1);
    EXPECT_EQ(g_fds.peek(kNew), &p);
    g_fds.remove(kOld);
    EXPECT_EQ(p.closed, 0);
    g_fds.remove(kNew);
    EXPECT_EQ(p.closed, 1);
    on_dup(kOld, kNew);  // a descriptor of the kernel's
    EXPECT_EQ(g_fds.peek(kNew), nullptr);
}

}  // namespace
