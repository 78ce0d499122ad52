// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/mlx5_sim/uverbs.h"

#include <linux/capability.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

namespace mlx5_sim {
namespace {

struct Command {
    std::uint32_t number;
    std::size_t in, out;  // least bytes of the core part; shorter ones answer ENOSPC
    int (*handler)(Context&, Request&);
};

#define CMD(name) IB_USER_VERBS_CMD_##name
#define CMD_EX(name) (IB_USER_VERBS_EX_CMD_##name | IB_USER_VERBS_CMD_FLAG_EXTENDED)
constexpr std::size_t kLength =
    8;  // of an extended answer that only tells its length: comp_mask, response_length
const Command kCommands[] = {
    {CMD(GET_CONTEXT), sizeof(ib_uverbs_get_context), sizeof(ib_uverbs_get_context_resp), get_context},
    {CMD(QUERY_DEVICE), sizeof(ib_uverbs_query_device), sizeof(ib_uverbs_query_device_resp), query_device},
    {CMD(QUERY_PORT), sizeof(ib_uverbs_query_port), sizeof(ib_uverbs_query_port_resp), query_port},
    {CMD(ALLOC_PD), sizeof(ib_uverbs_alloc_pd), sizeof(ib_uverbs_alloc_pd_resp), alloc_pd},
    {CMD(DEALLOC_PD), sizeof(ib_uverbs_dealloc_pd), 0, dealloc_pd},
    {CMD(REG_MR), sizeof(ib_uverbs_reg_mr), sizeof(ib_uverbs_reg_mr_resp), reg_mr},
    {CMD(DEREG_MR), sizeof(ib_uverbs_dereg_mr), 0, dereg_mr},
    {CMD(CREATE_COMP_CHANNEL), sizeof(ib_uverbs_create_comp_channel),
     sizeof(ib_uverbs_create_comp_channel_resp), create_comp_channel},
    {CMD(CREATE_CQ), sizeof(ib_uverbs_create_cq), sizeof(ib_uverbs_create_cq_resp), create_cq},
    {CMD(DESTROY_CQ), sizeof(ib_uverbs_destroy_cq), sizeof(ib_uverbs_destroy_cq_resp), destroy_cq},
    {CMD(CREATE_QP), sizeof(ib_uverbs_create_qp), sizeof(ib_uverbs_create_qp_resp), create_qp},
    {CMD(QUERY_QP), sizeof(ib_uverbs_query_qp), sizeof(ib_uverbs_query_qp_resp), query_qp},
    {CMD(MODIFY_QP), sizeof(ib_uverbs_modify_qp), 0, modify_qp},
    {CMD(DESTROY_QP), sizeof(ib_uverbs_destroy_qp), sizeof(ib_uverbs_destroy_qp_resp), destroy_qp},
    {CMD_EX(QUERY_DEVICE), sizeof(ib_uverbs_ex_query_device), sizeof(ib_uverbs_query_device_resp) + kLength,
     query_device_ex},
    {CMD_EX(CREATE_CQ), sizeof(ib_uverbs_ex_create_cq), sizeof(ib_uverbs_ex_create_cq_resp), create_cq_ex},
    {CMD_EX(MODIFY_CQ), sizeof(ib_uverbs_ex_modify_cq), 0, modify_cq_ex},
    {CMD_EX(CREATE_QP), sizeof(ib_uverbs_ex_create_qp) - 8, sizeof(ib_uverbs_ex_create_qp_resp),
     create_qp_ex},
    {CMD_EX(MODIFY_QP), sizeof(ib_uverbs_modify_qp), 0, modify_qp_ex},
    {CMD_EX(CREATE_FLOW), sizeof(ib_uverbs_create_flow), sizeof(ib_uverbs_create_flow_resp), create_flow},
    {CMD_EX(DESTROY_FLOW), sizeof(ib_uverbs_destroy_flow), 0, destroy_flow},
};
#undef CMD
#undef CMD_EX

// Memory of the program, read and written as the kernel does it: a bad address is EFAULT, not a crash.
bool copy_in(void* to, std::uint64_t from, std::size_t bytes) {
    const iovec local{to, bytes};
    const iovec remote{reinterpret_cast<void*>(from), bytes};  // NOLINT(performance-no-int-to-ptr)
    return bytes == 0 ||
           process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
}
bool copy_out(std::uint64_t to, const void* from, std::size_t bytes) {
    const iovec local{const_cast<void*>(from), bytes};
    const iovec remote{reinterpret_cast<void*>(to), bytes};  // NOLINT(performance-no-int-to-ptr)
    return bytes == 0 ||
           process_vm_writev(::getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
}

// The attributes of one INVOKE_WRITE call.
struct Attributes {
    const ib_uverbs_attr *core_in = nullptr, *core_out = nullptr, *driver_in = nullptr, *driver_out = nullptr;
    std::optional<std::uint64_t> command;
};

int sort_attributes(std::span<const ib_uverbs_attr> attributes, Attributes& sorted) {
    for (const ib_uverbs_attr& attribute : attributes) {
        switch (attribute.attr_id) {
            case UVERBS_ATTR_CORE_IN:
                sorted.core_in = &attribute;
                break;
            case UVERBS_ATTR_CORE_OUT:
                sorted.core_out = &attribute;
                break;
            case UVERBS_ATTR_UHW_IN:
                sorted.driver_in = &attribute;
                break;
            case UVERBS_ATTR_UHW_OUT:
                sorted.driver_out = &attribute;
                break;
            case UVERBS_ATTR_WRITE_CMD:
                sorted.command = attribute.data;
                break;
            default:
                if ((attribute.flags & UVERBS_ATTR_F_MANDATORY) != 0) return EPROTONOSUPPORT;
        }
    }
    return sorted.command ? 0 : EINVAL;
}

// What an attribute brings in; up to 8 bytes stand in the attribute itself.
bool bring_in(const ib_uverbs_attr* attribute, std::vector<std::byte>& bytes) {
    if (attribute == nullptr) return true;
    if (attribute->len == 0) return true;
    bytes.resize(attribute->len);
    if (attribute->len <= sizeof(attribute->data)) {
        std::memcpy(bytes.data(), &attribute->data, attribute->len);
        return true;
    }
    return copy_in(bytes.data(), attribute->data, bytes.size());
}

bool take_out(const ib_uverbs_attr* attribute, const std::vector<std::byte>& bytes) {
    return attribute == nullptr || copy_out(attribute->data, bytes.data(), bytes.size());
}

const Command* find_command(std::uint64_t number) {
    const auto* const found = std::find_if(std::begin(kCommands), std::end(kCommands),
                                           [&](const Command& command) { return command.number == number; });
    return found == std::end(kCommands) ? nullptr : found;
}

// Commands that take something away still work on a dead device, so that a program can clean up.
bool takes_away(const Command& command) {
    switch (command.number & ~IB_USER_VERBS_CMD_FLAG_EXTENDED) {
        case IB_USER_VERBS_CMD_DEALLOC_PD:
        case IB_USER_VERBS_CMD_DEREG_MR:
        case IB_USER_VERBS_CMD_DESTROY_CQ:
        case IB_USER_VERBS_CMD_DESTROY_QP:
        case IB_USER_VERBS_EX_CMD_DESTROY_FLOW:
            return true;
        default:
            return false;
    }
}

int invoke_write(Context& context, int fd, std::span<ib_uverbs_attr> attributes) {
    Attributes sorted;
    if (const int error = sort_attributes(attributes, sorted)) return error;
    constexpr std::uint64_t kKnown = IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_CMD_COMMAND_MASK;
    if ((*sorted.command & ~kKnown) != 0) return EINVAL;
    const Command* const command = find_command(*sorted.command);
    if (command == nullptr) return EOPNOTSUPP;

    std::vector<std::byte> in, driver_in;
    if (!bring_in(sorted.core_in, in) || !bring_in(sorted.driver_in, driver_in)) return EFAULT;
    const std::size_t out = sorted.core_out != nullptr ? sorted.core_out->len : 0;
    const std::size_t driver_out = sorted.driver_out != nullptr ? sorted.driver_out->len : 0;
    if (in.size() < command->in || out < command->out) return ENOSPC;
    const bool opens = command->number == IB_USER_VERBS_CMD_GET_CONTEXT;
    if (opens == context.has_ucontext) return EINVAL;  // first of all, and only once
    if (context.device.dead && !takes_away(*command)) return EIO;

    Request request(fd, std::move(in), std::move(driver_in), out, driver_out);
    if (const int error = command->handler(context, request)) return error;
    if (!take_out(sorted.core_out, request.out()) || !take_out(sorted.driver_out, request.driver_out()))
        return EFAULT;
    for (ib_uverbs_attr& attribute : attributes) {
        if (&attribute == sorted.core_out || &attribute == sorted.driver_out)
            attribute.flags |= UVERBS_ATTR_F_VALID_OUTPUT;
    }
    return 0;
}

}  // namespace

int uverbs_ioctl(Context& context, int fd, void* header) {
    constexpr std::size_t kMaxAttributes = 64;  // far more than any method has
    const auto address = reinterpret_cast<std::uintptr_t>(header);
    ib_uverbs_ioctl_hdr head{};
    if (!copy_in(&head, address, sizeof(head))) return EFAULT;
    if (head.num_attrs > kMaxAttributes ||
        head.length != sizeof(head) + head.num_attrs * sizeof(ib_uverbs_attr))
        return EINVAL;
    if (head.reserved1 != 0 || head.reserved2 != 0) return EPROTONOSUPPORT;
    if (head.driver_id != RDMA_DRIVER_MLX5) return EINVAL;
    if (head.object_id != UVERBS_OBJECT_DEVICE || head.method_id != UVERBS_METHOD_INVOKE_WRITE)
        return EPROTONOSUPPORT;

    std::vector<ib_uverbs_attr> attributes(head.num_attrs);
    const std::size_t bytes = attributes.size() * sizeof(ib_uverbs_attr);
    if (!copy_in(attributes.data(), address + sizeof(head), bytes)) return EFAULT;
    context.device.clock.ticks();
    if (const int error = invoke_write(context, fd, attributes)) return error;
    return copy_out(address + sizeof(head), attributes.data(), bytes) ? 0 : EFAULT;
}

bool may_use_raw() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    if (::syscall(SYS_capget, &header, data) != 0) return false;
    return (data[CAP_TO_INDEX(CAP_NET_RAW)].effective & CAP_TO_MASK(CAP_NET_RAW)) != 0;
}

}  // namespace mlx5_sim
