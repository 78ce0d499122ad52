// SPDX-License-Identifier: BSD-2-Clause
// The fast sums against RFC 1071 written the slow way, for every alignment and every length around the block
// sizes.
#include "libvma/net/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace vma::net {
namespace {

// RFC 1071: 16-bit words in memory order, one's complement addition, odd byte padded with zero.
std::uint16_t reference(const std::uint8_t* p, std::size_t length, std::uint16_t start = 0) {
    std::uint32_t sum = start;
    for (std::size_t i = 0; i < length; i += 2) {
        std::uint8_t pair[2] = {p[i], i + 1 < length ? p[i + 1] : std::uint8_t{0}};
        std::uint16_t word;
        memcpy(&word, pair, 2);
        sum += word;
        if (sum > 0xffff) sum -= 0xffff;
    }
    return static_cast<std::uint16_t>(sum);
}

std::vector<std::uint8_t> random_bytes(std::size_t length, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::uint8_t> bytes(length);
    for (auto& b : bytes) b = static_cast<std::uint8_t>(random());
    return bytes;
}

TEST(Checksum, Rfc1071Example) {
    const std::uint8_t data[] = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
    EXPECT_EQ(ntohs(checksum_fold(checksum_add(data, sizeof data, 0))), 0xddf2);
}

TEST(Checksum, EveryAlignmentAndLength) {
    auto bytes = random_bytes(1200, 1);
    for (std::size_t align = 0; align < 64; align++)
        for (std::size_t length = 0; length <= 700; length++)
            ASSERT_EQ(checksum_fold(checksum_add(bytes.data() + align, length, 0)),
                      reference(bytes.data() + align, length))
                << "align " << align << " length " << length;
}

TEST(Checksum, LongData) {
    auto bytes = random_bytes(70000, 2);
    for (std::size_t length : {1472u, 1473u, 4095u, 8972u, 65507u, 65535u, 70000u})
        EXPECT_EQ(checksum_fold(checksum_add(bytes.data(), length, 0)), reference(bytes.data(), length))
            << length;
}

TEST(Checksum, CarriesComeBackWhereverTheyArise) {
    // All ones make a carry at every step; 0xffff and 0 are the same number, and only true zeros give 0.
    std::vector<std::uint8_t> ones(600, 0xff), zeros(600, 0);
    for (std::size_t length = 2; length <= 600; length += 2) {
        ASSERT_EQ(checksum_fold(checksum_add(ones.data(), length, 0)), 0xffff) << length;
        ASSERT_EQ(checksum_fold(checksum_add(zeros.data(), length, 0)), 0) << length;
    }
    for (std::uint64_t start :
         {std::uint64_t{1}, ~std::uint64_t{0}, ~std::uint64_t{0} - 1, std::uint64_t{1} << 63})
        for (std::size_t length : {0u, 1u, 8u, 20u, 32u, 64u, 65u, 256u, 300u, 600u})
            ASSERT_EQ(checksum_fold(checksum_add(ones.data(), length, start)) % 0xffff,
                      (reference(ones.data(), length) + checksum_fold(start)) % 0xffff)
                << start << " " << length;
}

TEST(Checksum, ChainsOverEvenPieces) {
    auto bytes = random_bytes(1500, 3);
    std::uint16_t whole = reference(bytes.data(), bytes.size());
    for (std::size_t cut = 0; cut <= bytes.size(); cut += 2) {
        std::uint64_t sum = checksum_add(bytes.data(), cut, 0);
        sum = checksum_add(bytes.data() + cut, bytes.size() - cut, sum);
        ASSERT_EQ(checksum_fold(sum), whole) << cut;
    }
}

TEST(Checksum, CopyCopiesAndSums) {
    auto from = random_bytes(1000, 4);
    std::vector<std::uint8_t> to(1100);
    for (std::size_t align = 0; align < 16; align++)
        for (std::size_t length = 0; length <= 600; length++) {
            std::fill(to.begin(), to.end(), 0xa5);
            std::uint64_t sum =
                checksum_copy(to.data() + 16 + (align * 7) % 16, from.data() + align, length, 12345);
            const std::uint8_t* start = to.data() + 16 + (align * 7) % 16;
            ASSERT_EQ(memcmp(start, from.data() + align, length), 0);
            ASSERT_EQ(start[-1], 0xa5);
            ASSERT_EQ(start[length], 0xa5) << "wrote past the end, length " << length;
            ASSERT_EQ(checksum_fold(sum), reference(from.data() + align, length, 12345))
                << align << " " << length;
        }
}

TEST(Checksum, PseudoHeader) {
    // The twelve bytes of RFC 768's pseudo header, summed as data.
    const std::uint8_t header[12] = {198, 18, 0, 1, 198, 19, 255, 254, 0, 17, 0x12, 0x34};
    in_addr_t src, dst;
    memcpy(&src, header, 4);
    memcpy(&dst, header + 4, 4);
    EXPECT_EQ(checksum_fold(pseudo_header_sum(src, dst, 17, 0x1234)), reference(header, sizeof header));
}

}  // namespace
}  // namespace vma::net
