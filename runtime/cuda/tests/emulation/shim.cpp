// Runs kernels.cu on the CPU: the threads of a block are fibers that take turns at __syncthreads(), and blocks run one after the other.
// Reads requests from standard input and answers on standard output; see `emulated.rs`.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static

struct Index {
    unsigned x;
};
static Index threadIdx, blockIdx, gridDim;

struct alignas(16) float4 {
    float x, y, z, w;
};
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
// One fiber runs at a time.
static void atomicMin(unsigned long long *to, unsigned long long value) {
    if (value < *to) *to = value;
}
static void atomicAdd(unsigned long long *to, unsigned long long value) { *to += value; }

static ucontext_t scheduler;
static std::vector<ucontext_t> fibers;
static std::vector<std::vector<char>> stacks;
static std::vector<bool> over;
static std::function<void()> body;

static void __syncthreads() {
    const unsigned own = threadIdx.x;
    swapcontext(&fibers[own], &scheduler);
    threadIdx.x = own;
}

static void run_fiber() {
    const unsigned own = threadIdx.x;
    body();
    over[own] = true;
    swapcontext(&fibers[own], &scheduler);
}

#include "../../src/kernels/kernels.cu"

// Few blocks, so that each takes several parts.
static const unsigned BLOCKS = 3;

static void launch(std::function<void()> kernel) {
    body = kernel;
    gridDim.x = BLOCKS;
    fibers.resize(THREADS);
    stacks.resize(THREADS, std::vector<char>(64 * 1024));
    for (blockIdx.x = 0; blockIdx.x < BLOCKS; blockIdx.x++) {
        over.assign(THREADS, false);
        for (unsigned i = 0; i < THREADS; i++) {
            getcontext(&fibers[i]);
            fibers[i].uc_stack.ss_sp = stacks[i].data();
            fibers[i].uc_stack.ss_size = stacks[i].size();
            fibers[i].uc_link = nullptr;
            makecontext(&fibers[i], run_fiber, 0);
        }
        for (bool any = true; any;) {
            any = false;
            for (unsigned i = 0; i < THREADS; i++) {
                if (over[i]) continue;
                threadIdx.x = i;
                swapcontext(&scheduler, &fibers[i]);
                any = any || !over[i];
            }
        }
    }
}

static void take(void *to, size_t bytes) {
    if (bytes && fread(to, 1, bytes, stdin) != bytes) exit(0);
}

template <class T> static T take() {
    T value;
    take(&value, sizeof value);
    return value;
}

int main() {
    for (unsigned request = 0;; request++) {
        std::string name(take<uint32_t>(), 0);
        take(name.data(), name.size());
        std::vector<std::vector<char>> memory;
        std::vector<char *> at;
        std::vector<uint64_t> lengths;
        const uint32_t arrays = take<uint32_t>();
        for (uint32_t i = 0; i < arrays; i++) {
            const bool null = take<uint8_t>() == 0;
            const uint64_t bytes = take<uint64_t>();
            memory.emplace_back(bytes + 32);
            // Every other request has arrays that do not lie on 16 bytes; words always lie on theirs.
            char *aligned = (char *)(((uintptr_t)memory.back().data() + 15) & ~(uintptr_t)15);
            at.push_back(null ? nullptr : aligned + (request % 2 && bytes != 8 ? 4 : 0));
            lengths.push_back(bytes);
            take(at.back(), bytes);
        }
        const uint64_t n = take<uint64_t>();
        std::vector<float> f(take<uint32_t>());
        take(f.data(), 4 * f.size());
        auto F = [&](int i) { return (float *)at[i]; };
        auto B = [&](int i) { return (u8 *)at[i]; };
        auto W = [&](int i) { return (u64 *)at[i]; };
        bool known = true;
        launch([&] {
            if (name == "mix") mix(F(0), F(1), F(2), W(3), n, f[0], f[1]);
            else if (name == "divide") divide(F(0), n, f[0]);
            else if (name == "accumulate") accumulate(F(0), F(1), n, f[0]);
            else if (name == "slowmo") slowmo(F(0), F(1), F(2), F(3), n, f[0], f[1], f[2]);
            else if (name == "nesterov") nesterov(F(0), F(1), F(2), F(3), n, f[0], f[1]);
            else if (name == "bmuf_nbm") bmuf_nbm(F(0), F(1), F(2), F(3), n, f[0], f[1]);
            else if (name == "not_finite") not_finite(F(0), W(1), n);
            else if (name == "digest") digest(F(0), W(1), n);
#define EMULATED(kind)                                                                                                              \
    else if (name == "encode_gossip_" #kind) encode_gossip_##kind(F(0), F(1), B(2), n, f[0]);                                       \
    else if (name == "encode_contribution_" #kind) encode_contribution_##kind(F(0), F(1), F(2), B(3), F(4), n, f[0]);               \
    else if (name == "encode_publication_" #kind) encode_publication_##kind(F(0), F(1), B(2), F(3), n);                             \
    else if (name == "encode_" #kind) encode_##kind(F(0), B(1), n);                                                                 \
    else if (name == "decode_" #kind) decode_##kind(B(0), F(1), n);                                                                 \
    else if (name == "accumulate_" #kind) accumulate_##kind(B(0), F(1), n, f[0]);
            EMULATED(bf16)
            EMULATED(int8)
            else known = false;
        });
        if (!known) return 1;
        for (uint32_t i = 0; i < arrays; i++) fwrite(at[i], 1, at[i] ? lengths[i] : 0, stdout);
        fflush(stdout);
    }
}
