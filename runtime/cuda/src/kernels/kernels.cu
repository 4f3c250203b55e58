// What a GPU computes for slowmo: the arithmetic of `slowmo_protocol::mean`, bit for bit, and a check. Compiled by NVRTC when the first GPU is opened, without contraction of products and sums (`--fmad=false`), so that the bits are the CPU's.
//
// Every kernel is called as (pointers…, number of values, floats…), with any number of blocks of THREADS threads; a pointer that may be
// null says so. Each goes over its memory once. Names are those of the table in `kernels/mod.rs`.

typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)

__device__ __forceinline__ u32 bits(float value) { return __float_as_uint(value); }
// Whether a value is finite and at most 2^80 in magnitude, SENT_MAX of `slowmo_protocol::sound`.
__device__ __forceinline__ bool is_sound(float value) { return (bits(value) & 0x7fffffffu) <= 0x67800000u; }

// ---- passes over values, four at a time where all of them lie on 16 bytes -------------------------------------------------------

__device__ __forceinline__ bool aligned(const void *pointer) { return ((u64)pointer & 15) == 0; }

struct Four {
    float of[4];
};

__device__ __forceinline__ Four load(const float *from, u64 at, u64 count, bool wide) {
    Four four = {{0, 0, 0, 0}};
    if (wide && count == 4) {
        const float4 packed = *(const float4 *)(from + at);
        four.of[0] = packed.x, four.of[1] = packed.y, four.of[2] = packed.z, four.of[3] = packed.w;
    } else {
        for (u64 i = 0; i < count; i++) four.of[i] = from[at + i];
    }
    return four;
}

__device__ __forceinline__ void store(float *to, u64 at, u64 count, bool wide, const Four &four) {
    if (wide && count == 4) {
        *(float4 *)(to + at) = make_float4(four.of[0], four.of[1], four.of[2], four.of[3]);
    } else {
        for (u64 i = 0; i < count; i++) to[at + i] = four.of[i];
    }
}

// Calls work(first, count) for up to four values at a time.
template <class Work> __device__ __forceinline__ void each_four(u64 n, Work work) {
    const u64 step = (u64)gridDim.x * THREADS * 4;
    for (u64 at = ((u64)blockIdx.x * THREADS + threadIdx.x) * 4; at < n; at += step) {
        const u64 left = n - at;
        work(at, left < 4 ? left : 4);
    }
}

// x = stays·model + correction; the model becomes x / weight. `correction` null: zeros. `before`, unless it is null, becomes what the
// model was. `first` becomes the index of the first result that is not finite or too large, if that is less.
KERNEL mix(float *model, const float *correction, float *before, u64 *first, u64 n, float stays, float weight) {
    const bool wide = aligned(model) && aligned(correction) && aligned(before);
    each_four(n, [&](u64 at, u64 count) {
        Four value = load(model, at, count, wide);
        Four other = {{0, 0, 0, 0}};
        if (correction) other = load(correction, at, count, wide);
        if (before) store(before, at, count, wide, value);
        for (u64 i = 0; i < count; i++) {
            value.of[i] = (other.of[i] + stays * value.of[i]) / weight;
            if (!is_sound(value.of[i])) atomicMin(first, at + i);
        }
        store(model, at, count, wide, value);
    });
}

// values /= weight.
KERNEL divide(float *values, u64 n, float weight) {
    const bool wide = aligned(values);
    each_four(n, [&](u64 at, u64 count) {
        Four value = load(values, at, count, wide);
        for (u64 i = 0; i < 4; i++) value.of[i] = value.of[i] / weight;
        store(values, at, count, wide, value);
    });
}

// `first` becomes the index of the first value that is not finite or too large, if that is less.
KERNEL not_finite(const float *values, u64 *first, u64 n) {
    const bool wide = aligned(values);
    each_four(n, [&](u64 at, u64 count) {
        const Four value = load(values, at, count, wide);
        for (u64 i = 0; i < count; i++) {
            if (!is_sound(value.of[i])) atomicMin(first, at + i);
        }
    });
}
