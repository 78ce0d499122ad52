// SPDX-License-Identifier: BSD-2-Clause
// The library's folders are layers, and a file includes only its own layer or one below. That is what lets a
// reader understand a layer without those above it, so it is checked like any other promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

// From the top down; also in docs/architecture.md.
constexpr std::array<std::string_view, 12> kLayers = {
    "preload", "api", "iomux", "sockets", "tcp", "ring", "net", "verbs", "stats", "config", "runtime", "os"};
// What programs outside the library share with it: the layout of the statistics, and the parameter table.
constexpr std::array<std::string_view, 2> kShared = {"stats", "config"};
// And the program that measures the device layer without what stands on it.
constexpr std::string_view kMeasuring = "tools/vma_perf/raw";
constexpr std::array<std::string_view, 2> kMeasured = {"verbs", "net"};
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

// The layer that `path`, as written in an #include of a file in `folder` (relative to the top), lies in: the
// folder under libvma/, "" when it is elsewhere.
std::string layer_of(const fs::path& folder, std::string_view path) {
    // Includes are written from the top, or plainly for a neighbour of the including file.
    const fs::path whole = path.starts_with("libvma/") ? fs::path(path) : (folder / path).lexically_normal();
    auto part = whole.begin();
    if (part == whole.end() || *part != "libvma" || ++part == whole.end() || std::next(part) == whole.end())
        return "";
    return part->string();
}

// Why a file in `folder` must not include `path`; empty when it may.
std::string objection(const fs::path& folder, std::string_view path) {
    const std::string target = layer_of(folder, path);
    if (target.empty()) return "";
    const std::string own = layer_of("", (folder / "file").string());
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
    return *below > *above ? own + " must not include " + target + ", which lies above it" : "";
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

TEST(Layers, EveryFolderIsALayer) {
    for (const auto& entry : fs::directory_iterator(kTop / "libvma")) {
        if (entry.is_directory()) {
            EXPECT_TRUE(height(entry.path().filename().string())) << entry.path();
        }
    }
}

// The check itself.
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
    EXPECT_NE(objection("libvma/verbs/xdp", "../../net/frame.h"), "")
        << "a relative path, from a folder in a layer";
    EXPECT_NE(objection("libvma/sockets", "libvma/nowhere/x.h"), "");
    EXPECT_NE(objection("tools/vma_stats", "libvma/sockets/fd_table.h"), "");
    EXPECT_NE(objection("tools/vma_perf", "libvma/verbs/device.h"), "");
    EXPECT_NE(objection("tools/vma_perf/raw", "libvma/ring/ring.h"), "");
}

TEST(Layers, AcceptsDownwardAndForeignIncludes) {
    EXPECT_EQ(objection("libvma/preload", "libvma/os/calls.h"), "");
    EXPECT_EQ(objection("libvma/ring", "libvma/net/frame.h"), "");
    EXPECT_EQ(objection("libvma/ring", "rings.h"), "");
    EXPECT_EQ(objection("libvma/verbs/xdp", "../device.h"), "");
    EXPECT_EQ(objection("libvma/os", "mellanox/vma_extra.h"), "") << "a public header is no layer";
    EXPECT_EQ(objection("libvma/verbs/xdp", "steer.lskel.h"), "") << "generated";
    EXPECT_EQ(objection("tools/vma_stats", "libvma/stats/layout.h"), "");
    EXPECT_EQ(objection("tools/vma_perf/raw", "libvma/verbs/device.h"), "");
}

}  // namespace
