// SPDX-License-Identifier: BSD-2-Clause
// A program for the preloaded tracer: its device is its own, and every request completes at once.
//
// Usage: traced_program HOW [REQUESTS]
//   return, exit, quick_exit, abort, term, _exit, kill, segv   how it ends after posting and polling
//   exec         becomes this program again, with 10 requests and the end "return"
//   handled      has a handler for SIGTERM of its own and gets that signal
//   fork         a child posts as well, to the same device and to one of its own, which nobody else gets hold
//   of threads      four threads with a QP each dlopen       looks libibverbs' functions up and says in which
//   object they were found cost         posts and polls inside measured(), for callgrind
//   (tests/bench/trace_cost)
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

extern "C" __attribute__((weak)) void vma_trace_context(ibv_context* context);

namespace {

struct Device {
    ibv_device device{};
    ibv_context context{};
};

// One QP and its CQ; completes what is posted with the next poll.
struct Queue {
    explicit Queue(Device& device, std::uint32_t number) {
        cq.context = qp.context = &device.context;
        qp.send_cq = qp.recv_cq = &cq;
        qp.qp_num = number;
        qp.qp_type = IBV_QPT_RC;
        cq.cq_context = this;
        qp.qp_context = this;
    }
    ibv_cq cq{};
    ibv_qp qp{};
    std::vector<ibv_wc> ready = std::vector<ibv_wc>(64);
    int count = 0;
};

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr**) {
    auto& queue = *static_cast<Queue*>(qp->qp_context);
    ibv_wc& wc = queue.ready[static_cast<std::size_t>(queue.count++)];
    wc.wr_id = wr->wr_id;
    wc.qp_num = qp->qp_num;
    wc.opcode = IBV_WC_SEND;
    wc.status = IBV_WC_SUCCESS;
    return 0;
}

int poll_cq(ibv_cq* cq, int wanted, ibv_wc* out) {
    auto& queue = *static_cast<Queue*>(cq->cq_context);
    const int n = queue.count < wanted ? queue.count : wanted;
    memcpy(static_cast<void*>(out), queue.ready.data(), static_cast<std::size_t>(n) * sizeof *out);
    queue.count = 0;
    return n;
}

__attribute__((noinline)) void measured(Queue& queue, long requests) {
    ibv_sge sge{0, 64, 0};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_wc wc[16];
    for (long i = 0; i < requests; i++) {
        wr.wr_id = static_cast<std::uint64_t>(i);
        if (ibv_post_send(&queue.qp, &wr, &bad) != 0 || ibv_poll_cq(&queue.cq, 16, wc) != 1) abort();
    }
}

void say_where(const char* name, void* function) {
    Dl_info info{};
    if (function == nullptr || dladdr(function, &info) == 0)
        printf("%s nowhere\n", name);
    else
        printf("%s %s\n", name,
               strrchr(info.dli_fname, '/') != nullptr ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname);
}

int look_up() {
    void* handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return fprintf(stderr, "%s\n", dlerror()), 1;
    say_where("dlsym:ibv_open_device", dlsym(handle, "ibv_open_device"));
    say_where("dlvsym:ibv_open_device@1.1", dlvsym(handle, "ibv_open_device", "IBVERBS_1.1"));
    say_where("dlvsym:ibv_open_device@1.0", dlvsym(handle, "ibv_open_device", "IBVERBS_1.0"));
    say_where("dlsym:ibv_get_device_list", dlsym(handle, "ibv_get_device_list"));
    say_where("dlsym:ibv_nonsense", dlsym(handle, "ibv_nonsense"));
    say_where("next:getpid", dlsym(RTLD_NEXT, "getpid"));
    auto* list = reinterpret_cast<ibv_device** (*)(int*)>(dlsym(handle, "ibv_get_device_list"));
    int count = -1;
    ibv_device** devices = list != nullptr ? list(&count) : nullptr;
    printf("devices %s\n", devices != nullptr || count <= 0 ? "asked" : "failed");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) return fprintf(stderr, "usage: traced_program HOW [REQUESTS]\n"), 2;
    const char* how = argv[1];
    const long requests = argc > 2 ? atol(argv[2]) : 100;
    const auto is = [&](const char* name) { return strcmp(how, name) == 0; };
    if (is("dlopen")) return look_up();

    static Device device;
    strcpy(device.device.name, "own0");
    device.context.device = &device.device;
    device.context.ops.post_send = post_send;
    device.context.ops.poll_cq = poll_cq;
    if (vma_trace_context != nullptr) vma_trace_context(&device.context);
    if (is("handled")) signal(SIGTERM, [](int) { _exit(7); });

    static Queue queue(device, 1);
    if (is("threads")) {
        static std::vector<Queue*> queues;
        std::vector<std::thread> threads;
        for (std::uint32_t i = 0; i < 4; i++) queues.push_back(new Queue(device, 10 + i));
        for (Queue* each : queues) threads.emplace_back([each, requests] { measured(*each, requests); });
        for (std::thread& thread : threads) thread.join();
        return 0;
    }
    measured(queue, 1);  // what happens only with the first request is not measured
    measured(queue, requests - 1);
    if (is("fork")) {
        const pid_t child = fork();
        if (child == 0) {
            measured(queue, 50);
            Device own = device;
            own.context.ops.post_send = post_send;
            own.context.ops.poll_cq = poll_cq;
            if (vma_trace_context != nullptr) vma_trace_context(&own.context);
            Queue theirs(own, 2);
            measured(theirs, 50);
            exit(own.context.ops.post_send == post_send ? 0 : 1);
        }
        int status = 1;
        waitpid(child, &status, 0);
        return WEXITSTATUS(status);
    }
    if (is("exec")) execl("/proc/self/exe", "traced_program", "return", "10", nullptr);
    if (is("_exit")) _exit(5);
    if (is("kill")) raise(SIGKILL);
    if (is("segv")) raise(SIGSEGV);
    if (is("exit")) exit(3);
    if (is("quick_exit")) quick_exit(4);
    if (is("abort")) abort();
    if (is("term") || is("handled")) raise(SIGTERM);
    return 0;
}
