// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/rdma/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>

#include <cstring>
#include <memory>

namespace vma::verbs::rdma {
namespace {

struct Symbol {
    const char* name;
    const char* version;
    void** place;
};

// A library with another release of the ABI may have only its default version of the function.
void* find(void* library, const Symbol& symbol) noexcept {
    if (void* found = dlvsym(library, symbol.name, symbol.version)) return found;
    return dlsym(library, symbol.name);
}

template <std::size_t N>
Result<void> load(const char* file, const Symbol (&symbols)[N]) {
    ErrnoAndCancelKept calm;
    void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* why = dlerror();
        return fail(ENOENT,
                    fmt::format("{} cannot be loaded ({})", file, why != nullptr ? why : "no reason given"));
    }
    for (const Symbol& symbol : symbols) {
        *symbol.place = find(library, symbol);
        if (*symbol.place != nullptr) continue;
        dlclose(library);
        return fail(ENOSYS, fmt::format("{} has no function {}", file, symbol.name));
    }
    return {};
}

}  // namespace

ErrnoAndCancelKept::ErrnoAndCancelKept() noexcept : errno_(errno) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_);
}

ErrnoAndCancelKept::~ErrnoAndCancelKept() {
    pthread_setcancelstate(cancel_, nullptr);
    errno = errno_;
}

#define VMA_SYMBOL(member, symbol, version) {#symbol, version, reinterpret_cast<void**>(&table->member)},

Result<const Verbs*> load_verbs(const char* file) {
    auto table = std::make_unique<Verbs>();
    const Symbol symbols[] = {VMA_VERBS_FUNCTIONS(VMA_SYMBOL)};
    if (auto loaded = load(file, symbols); !loaded) return std::unexpected(loaded.error());
    return table.release();
}

Result<const Mlx5*> load_mlx5(const char* file) {
    auto table = std::make_unique<Mlx5>();
    const Symbol symbols[] = {VMA_MLX5_FUNCTIONS(VMA_SYMBOL)};
    if (auto loaded = load(file, symbols); !loaded) return std::unexpected(loaded.error());
    return table.release();
}

// Not destroyed at exit, because other threads may still use it then.
const Result<const Verbs*>& verbs() {
    static const auto* const loaded = new Result<const Verbs*>(load_verbs("libibverbs.so.1"));
    return *loaded;
}

const Result<const Mlx5*>& mlx5() {
    static const auto* const loaded = new Result<const Mlx5*>(load_mlx5("libmlx5.so.1"));
    return *loaded;
}

int Verbs::query_port(ibv_context* context, std::uint8_t port, ibv_port_attr& attr) const noexcept {
    attr = {};
    if (verbs_context* extended = verbs_get_ctx_op(context, query_port))
        return extended->query_port(context, port, &attr, sizeof attr);
    return query_port_1(context, port, reinterpret_cast<_compat_ibv_port_attr*>(&attr));
}

int Verbs::query_device(ibv_context* context, ibv_device_attr_ex& attr) const noexcept {
    attr = {};
    if (verbs_context* extended = verbs_get_ctx_op(context, query_device_ex)) {
        const int error = extended->query_device_ex(context, nullptr, &attr, sizeof attr);
        if (error != EOPNOTSUPP && error != ENOSYS) return error;
        attr = {};
    }
    return query_device_1(context, &attr.orig_attr);
}

}  // namespace vma::verbs::rdma
