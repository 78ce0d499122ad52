// SPDX-License-Identifier: BSD-2-Clause
// The library's folders are layers, and a file includes only its own layer or one below. Readers can
// therefore understand a layer without those above it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

// From the top down; also in docs/architecture/README.md.
constexpr std::array<std::string_view, 13> kLayers = {"api",  "preload", "iomux", "sockets", "tcp",
                                                      "ring", "verbs",   "stats", "config",  "net",
                                                      "bpf",  "runtime", "os"};
// What programs outside the library share with it: the layout of the statistics, and the parameter table.
constexpr std::array<std::string_view, 2> kShared = {"stats", "config"};
// And the program that measures the device layer without what stands on it.
constexpr std::string_view kMeasuring = "tools/vma_perf/raw";
constexpr std::array<std::string_view, 2> kMeasured = {"verbs", "net"};
// Which neighbours a folder within a layer may include; its own files and the layer's top folder always.
struct Neighbours {
    std::string_view folder;
    std::array<std::string_view, 4> may_include;
};
constexpr std::array<Neighbours, 15> kInside = {{
    {"sockets/udp", {"handover", "observe"}},
    {"sockets/tcp", {"handover", "observe"}},
    {"sockets/handover", {"tcp"}},
    {"sockets/observe", {"tcp"}},
    {"tcp/send", {"recovery", "handshake", "timers", "lwip"}},
    {"tcp/receive", {"recovery", "handshake", "timers", "lwip"}},
    {"tcp/migrate", {"recovery", "timers", "lwip", "send"}},
    {"tcp/recovery", {"timers", "lwip", "send"}},
    {"tcp/handshake", {"timers", "lwip", "receive"}},
    {"tcp/timers", {"handshake", "lwip", "send"}},
    {"tcp/lwip", {"timers", "handshake"}},
    {"ring/strays", {}},
    {"verbs/rdma", {"mlx5"}},
    {"verbs/mlx5", {}},
    {"verbs/xdp", {}},
}};
// lwIP's sources are built and called in one folder. Others know its blocks by the classes of that folder
// (pcb.h, segment.h, piece.h, received_header.h).
constexpr std::string_view kLwip = "libvma/tcp/lwip";
constexpr std::array<std::string_view, 6> kLwipNames = {"tcp_pcb", "pbuf",  "tcp_seg",
                                                        "tcp_hdr", "err_t", "vma_lwip_"};
// The tracer reads the clock as the library does.
constexpr std::string_view kTracing = "tools/vma_trace";

const fs::path kTop = fs::absolute(__FILE__).parent_path().parent_path().parent_path();

std::optional<std::size_t> height(std::string_view layer) {
    const auto found = std::ranges::find(kLayers, layer);
    if (found == kLayers.end()) return std::nullopt;
    return static_cast<std::size_t>(kLayers.end() - found);
}

// What a line of source includes by quotes, or nothing. System headers are nobody's layer.
std::optional<std::string> included(std::string_view line) {
    const auto skip_blanks = [&] {
        line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    };
    const auto skip = [&](std::string_view word) {
        skip_blanks();
        if (!line.starts_with(word)) return false;
        line.remove_prefix(word.size());
        return true;
    };
    if (!skip("#") || !skip("include") || !skip("\"")) return std::nullopt;
    return std::string(line.substr(0, line.find('"')));
}

// A file's place under libvma/: its layer, and the folder within the layer; "" where there is none.
struct Place {
    std::string layer, inside;
};

// The file that an #include of `path` means, written in a file in `folder`; both relative to the top.
// Includes are written from the top, or plainly for a neighbour of the including file.
fs::path meant(const fs::path& folder, std::string_view path) {
    const bool from_top = path.starts_with("libvma/") || path.starts_with("tests/");
    return from_top ? fs::path(path) : (folder / path).lexically_normal();
}

Place place_of(const fs::path& file) {
    const std::vector<std::string> parts(file.begin(), file.end());
    if (parts.size() < 3 || parts[0] != "libvma") return {};
    return {parts[1], parts.size() > 3 ? parts[2] : ""};
}

// Why a file of one folder of a layer must not include one of another; empty when it may.
std::string objection_inside(const Place& own, const Place& target) {
    if (own.inside.empty() || target.inside.empty() || own.inside == target.inside) return "";
    const std::string folder = own.layer + "/" + own.inside;
    const auto known = std::ranges::find(kInside, folder, &Neighbours::folder);
    if (known == kInside.end()) return "libvma/" + folder + " is not a known folder (kInside)";
    const bool may =
        std::ranges::find(known->may_include, std::string_view(target.inside)) != known->may_include.end();
    return may ? "" : folder + " must not include " + target.layer + "/" + target.inside;
}

// Why a file in `folder` must not include `path`; empty when it may.
std::string objection(const fs::path& folder, std::string_view path) {
    const fs::path file = meant(folder, path);
    if (*file.begin() == "tests") return "only tests may include tests/";
    const Place there = place_of(file), here = place_of(folder / "file");
    const std::string& target = there.layer;
    if (target.empty()) return "";
    const std::string& own = here.layer;
    const auto above = height(own);
    const auto below = height(target);
    if (!below) return "libvma/" + target + " is not a known layer";
    if (own.empty()) {
        const bool measured =
            folder == kMeasuring && std::ranges::find(kMeasured, std::string_view(target)) != kMeasured.end();
        const bool shared = measured || (folder == kTracing && target == "runtime") ||
                            std::ranges::find(kShared, std::string_view(target)) != kShared.end();
        return shared ? "" : "a program outside the library must not include libvma/" + target;
    }
    if (!above) return "libvma/" + own + " is not a known layer";
    if (*below > *above) return own + " must not include " + target + ", which lies above it";
    return own == target ? objection_inside(here, there) : "";
}

// Why a line of the library, outside of kLwip, shows lwIP; empty when it does not.
std::string lwip_shown(std::string_view line) {
    const auto path = included(line);
    if (path && path->starts_with("lwip/")) return "includes lwIP's " + *path;
    if (path == "libvma/tcp/lwip/lwip.h") return "includes all of lwIP";
    const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    for (const std::string_view name : kLwipNames) {
        for (auto at = line.find(name); at != line.npos; at = line.find(name, at + 1)) {
            const auto end = at + name.size();
            const bool begins = at == 0 || !is_word(line[at - 1]);
            const bool ends = name.ends_with('_') || end == line.size() || !is_word(line[end]);
            if (begins && ends) return "names lwIP's " + std::string(name);
        }
    }
    return "";
}

bool is_source(const fs::path& path) {
    static constexpr std::array<std::string_view, 6> kExtensions = {".h", ".c", ".cpp", ".def", ".S", ".inc"};
    return std::ranges::find(kExtensions, path.extension().string()) != kExtensions.end();
}

struct Found {
    std::vector<std::string> objections;
    std::size_t files = 0;
    std::size_t includes = 0;
};

Found examine(const fs::path& folder) {
    Found found;
    for (const auto& entry : fs::recursive_directory_iterator(kTop / folder)) {
        if (!entry.is_regular_file() || !is_source(entry.path())) continue;
        ++found.files;
        const fs::path relative = fs::relative(entry.path(), kTop);
        std::ifstream file(entry.path());
        std::string line;
        for (int number = 1; std::getline(file, line); ++number) {
            const auto path = included(line);
            if (!path) continue;
            ++found.includes;
            const std::string why = objection(relative.parent_path(), *path);
            if (!why.empty())
                found.objections.push_back(relative.string() + ":" + std::to_string(number) + ": " + why);
        }
    }
    return found;
}

std::string joined(const std::vector<std::string>& lines) {
    std::ostringstream out;
    for (const auto& line : lines) out << line << '\n';
    return out.str();
}

TEST(Layers, LibraryIncludesDownwardsOnly) {
    const Found found = examine("libvma");
    EXPECT_GT(found.files, kLayers.size()) << "the sources were not found under " << kTop;
    EXPECT_GT(found.includes, found.files) << "the includes were not read";
    EXPECT_TRUE(found.objections.empty()) << joined(found.objections);
}

TEST(Layers, ToolsShareOnlyLayoutsAndTablesWithTheLibrary) {
    const Found found = examine("tools");
    EXPECT_TRUE(found.objections.empty()) << joined(found.objections);
}

TEST(Layers, OnlyItsFolderShowsLwip) {
    std::size_t files = 0;
    std::vector<std::string> objections;
    for (const auto& entry : fs::recursive_directory_iterator(kTop / "libvma")) {
        const fs::path relative = fs::relative(entry.path(), kTop);
        if (!entry.is_regular_file() || !is_source(entry.path())) continue;
        if (relative.string().starts_with(std::string(kLwip) + "/")) continue;
        ++files;
        std::ifstream file(entry.path());
        std::string line;
        for (int number = 1; std::getline(file, line); ++number) {
            const std::string why = lwip_shown(line);
            if (!why.empty())
                objections.push_back(relative.string() + ":" + std::to_string(number) + ": " + why);
        }
    }
    EXPECT_GT(files, kLayers.size());
    EXPECT_TRUE(objections.empty()) << joined(objections);
}

TEST(Layers, EveryFolderIsALayer) {
    for (const auto& entry : fs::directory_iterator(kTop / "libvma")) {
        if (entry.is_directory()) {
            EXPECT_TRUE(height(entry.path().filename().string())) << entry.path();
        }
    }
}

// The checks themselves.
TEST(Layers, SeesLwip) {
    EXPECT_NE(lwip_shown("struct tcp_pcb;"), "");
    EXPECT_NE(lwip_shown("    pbuf* p = nullptr;"), "");
    EXPECT_NE(lwip_shown("#include \"lwip/tcp.h\""), "");
    EXPECT_NE(lwip_shown("#include \"libvma/tcp/lwip/lwip.h\""), "");
    EXPECT_NE(lwip_shown("vma_lwip_drop_text();"), "");
    EXPECT_EQ(lwip_shown("#include \"libvma/tcp/lwip/pcb.h\""), "");
    EXPECT_EQ(lwip_shown("lwip::Pcb* const pcb = tcb_.pcb;"), "");
    EXPECT_EQ(lwip_shown("std::size_t stopbufs;"), "");
}
TEST(Layers, ReadsIncludes) {
    EXPECT_EQ(included("#include \"libvma/os/calls.h\""), "libvma/os/calls.h");
    EXPECT_EQ(included("  #  include  \"calls.h\"  // why"), "calls.h");
    EXPECT_EQ(included("#include <vector>"), std::nullopt);
    EXPECT_EQ(included("// #include \"libvma/os/calls.h\""), std::nullopt);
    EXPECT_EQ(included("#"), std::nullopt);
    EXPECT_EQ(included(""), std::nullopt);
}

TEST(Layers, ObjectsToUpwardIncludes) {
    EXPECT_NE(objection("libvma/os", "libvma/runtime/clock.h"), "");
    EXPECT_NE(objection("libvma/net", "libvma/ring/ring.h"), "");
    EXPECT_NE(objection("libvma/net", "libvma/config/rules.h"), "");
    EXPECT_NE(objection("libvma/verbs/xdp", "../../ring/ring.h"), "")
        << "a relative path, from a folder in a layer";
    EXPECT_NE(objection("libvma/sockets", "libvma/nowhere/x.h"), "");
    EXPECT_NE(objection("libvma/ring", "tests/support/wire/wire.h"), "");
    EXPECT_NE(objection("libvma/verbs/xdp", "../../../tests/support/wire/wire.h"), "");
    EXPECT_NE(objection("tools/vma_stats", "tests/vma_stats/stats_image.h"), "");
    EXPECT_NE(objection("libvma/sockets/tcp", "libvma/sockets/udp/receive_queue.h"), "");
    EXPECT_NE(objection("libvma/tcp/lwip", "../recovery/rtt.h"), "");
    EXPECT_NE(objection("libvma/tcp/nowhere", "libvma/tcp/lwip/glue.h"), "");
    EXPECT_NE(objection("tools/vma_stats", "libvma/sockets/fd_table.h"), "");
    EXPECT_NE(objection("tools/vma_perf", "libvma/verbs/device.h"), "");
    EXPECT_NE(objection("tools/vma_perf/raw", "libvma/ring/ring.h"), "");
}

TEST(Layers, AcceptsDownwardAndForeignIncludes) {
    EXPECT_EQ(objection("libvma/preload", "libvma/os/calls.h"), "");
    EXPECT_EQ(objection("libvma/ring", "libvma/net/frame.h"), "");
    EXPECT_EQ(objection("libvma/ring", "rings.h"), "");
    EXPECT_EQ(objection("libvma/verbs/xdp", "../device.h"), "");
    EXPECT_EQ(objection("libvma/tcp/recovery", "libvma/tcp/lwip/glue.h"), "");
    EXPECT_EQ(objection("libvma/tcp", "libvma/tcp/send/send_queue.h"), "") << "the layer's top folder";
    EXPECT_EQ(objection("libvma/os", "mellanox/vma_extra.h"), "") << "a public header is no layer";
    EXPECT_EQ(objection("libvma/verbs/xdp", "steer.lskel.h"), "") << "generated";
    EXPECT_EQ(objection("tools/vma_stats", "libvma/stats/layout.h"), "");
    EXPECT_EQ(objection("tools/vma_perf/raw", "libvma/verbs/device.h"), "");
}

}  // namespace
