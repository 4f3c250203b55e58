// Runs kernels.cu on the CPU: blocks and their threads run one after the other, since no kernel waits within a block.
// Reads requests from standard input and answers on standard output; see `emulated.rs`.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)

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
// One thread runs at a time.
static void atomicMin(unsigned long long *to, unsigned long long value) {
    if (value < *to) *to = value;
}

#include "../../src/kernels/kernels.cu"

// Few blocks, so that each takes several parts.
static const unsigned BLOCKS = 3;

static void launch(const std::function<void()> &kernel) {
    gridDim.x = BLOCKS;
    for (blockIdx.x = 0; blockIdx.x < BLOCKS; blockIdx.x++) {
        for (threadIdx.x = 0; threadIdx.x < THREADS; threadIdx.x++) kernel();
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
        auto W = [&](int i) { return (u64 *)at[i]; };
        bool known = true;
        launch([&] {
            if (name == "mix") mix(F(0), F(1), F(2), W(3), n, f[0], f[1]);
            else if (name == "divide") divide(F(0), n, f[0]);
            else if (name == "not_finite") not_finite(F(0), W(1), n);
            else known = false;
        });
        if (!known) return 1;
        for (uint32_t i = 0; i < arrays; i++) fwrite(at[i], 1, at[i] ? lengths[i] : 0, stdout);
        fflush(stdout);
    }
}
