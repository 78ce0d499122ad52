// SPDX-License-Identifier: BSD-2-Clause
// The numbers of each kind of block, in one table for each: differences, JSON and Prometheus come from the
// same rows. All are 64 bits wide.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "libvma/stats/layout.h"

namespace vma_stats {

enum class Kind { counter, gauge };

struct Field {
    const char* name;    // in JSON; dots make objects in objects
    const char* metric;  // in Prometheus, without "vma_" and "_total"; several fields may be one metric
    const char* label;   // what tells them apart there: path="offload"; may be empty
    std::size_t offset;  // in the block
    Kind kind;
    const char* help;
    double scale = 1;  // a metric in seconds is the value times this
};

template <class Block>
std::span<const Field> fields_of();
template <>
std::span<const Field> fields_of<vma::stats::SocketBlock>();
template <>
std::span<const Field> fields_of<vma::stats::RingBlock>();
template <>
std::span<const Field> fields_of<vma::stats::PoolBlock>();
template <>
std::span<const Field> fields_of<vma::stats::MuxBlock>();
template <>
std::span<const Field> fields_of<vma::stats::TotalsBlock>();
template <>
std::span<const Field> fields_of<vma::stats::GroupBlock>();

template <class Block>
std::uint64_t get(const Block& block, const Field& field) {
    std::uint64_t value;
    std::memcpy(&value, reinterpret_cast<const char*>(&block) + field.offset, sizeof value);
    return value;
}
template <class Block>
void set(Block& block, const Field& field, std::uint64_t value) {
    std::memcpy(reinterpret_cast<char*>(&block) + field.offset, &value, sizeof value);
}

// RingDrop as words: "no_socket".
const char* drop_name(unsigned drop);

}  // namespace vma_stats
