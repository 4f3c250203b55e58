// What a GPU computes for slowmo: the arithmetic of `slowmo_protocol::{mean, outer, encoding}`, bit for bit, and two checks. Compiled
// by NVRTC when the first GPU is opened, without contraction of products and sums (`--fmad=false`), so that the bits are the CPU's.
//
// Every kernel is called as (pointers…, number of values, floats…), with any number of blocks of THREADS threads; a pointer that may be
// null says so. Each goes over its memory once. Names are those of the table in `kernels/mod.rs`.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)

// Values that share a scale as int8; a block of threads takes one.
#define BLOCK_ELEMENTS THREADS
// A block's scale and its bytes.
#define INT8_BLOCK_BYTES (4 + BLOCK_ELEMENTS)

__device__ __forceinline__ u32 bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float number(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ bool is_finite(float value) { return (bits(value) & 0x7f800000u) != 0x7f800000u; }

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
// model was. `first` becomes the index of the first result that is not finite, if that is less.
KERNEL mix(float *model, const float *correction, float *before, u64 *first, u64 n, float stays, float weight) {
    const bool wide = aligned(model) && aligned(correction) && aligned(before);
    each_four(n, [&](u64 at, u64 count) {
        Four value = load(model, at, count, wide);
        Four other = {{0, 0, 0, 0}};
        if (correction) other = load(correction, at, count, wide);
        if (before) store(before, at, count, wide, value);
        for (u64 i = 0; i < count; i++) {
            value.of[i] = (other.of[i] + stays * value.of[i]) / weight;
            if (!is_finite(value.of[i])) atomicMin(first, at + i);
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

// target += scale·values.
KERNEL accumulate(float *target, const float *values, u64 n, float scale) {
    const bool wide = aligned(target) && aligned(values);
    each_four(n, [&](u64 at, u64 count) {
        Four sum = load(target, at, count, wide);
        const Four value = load(values, at, count, wide);
        for (u64 i = 0; i < 4; i++) sum.of[i] += scale * value.of[i];
        store(target, at, count, wide, sum);
    });
}

// A slow step: `values` hold the exact average and become the new parameters, `next` the new momentum.
template <class Rule>
__device__ __forceinline__ void slow(float *values, const float *anchor, const float *momentum, float *next, u64 n, Rule rule) {
    const bool wide = aligned(values) && aligned(anchor) && aligned(momentum) && aligned(next);
    each_four(n, [&](u64 at, u64 count) {
        Four value = load(values, at, count, wide);
        const Four before = load(anchor, at, count, wide);
        Four slow = load(momentum, at, count, wide);
        for (u64 i = 0; i < 4; i++) rule(value.of[i], before.of[i], slow.of[i]);
        store(values, at, count, wide, value);
        store(next, at, count, wide, slow);
    });
}

// u = βu + (o − x̄)/γ; x = o − rate·u, where rate = αγ.
KERNEL slowmo(float *values, const float *anchor, const float *momentum, float *next, u64 n, float rate, float beta, float gamma) {
    slow(values, anchor, momentum, next, n, [&](float &value, float anchor, float &momentum) {
        momentum = beta * momentum + (anchor - value) / gamma;
        value = anchor - rate * momentum;
    });
}

// Δ = o − x̄; v = μv + Δ; x = o − η(Δ + μv).
KERNEL nesterov(float *values, const float *anchor, const float *momentum, float *next, u64 n, float eta, float mu) {
    slow(values, anchor, momentum, next, n, [&](float &value, float anchor, float &momentum) {
        const float delta = anchor - value;
        momentum = mu * momentum + delta;
        value = anchor - eta * (delta + mu * momentum);
    });
}

// v = μv + ηΔ; x = o − v − μv.
KERNEL bmuf_nbm(float *values, const float *anchor, const float *momentum, float *next, u64 n, float eta, float mu) {
    slow(values, anchor, momentum, next, n, [&](float &value, float anchor, float &momentum) {
        momentum = mu * momentum + eta * (anchor - value);
        value = anchor - momentum - mu * momentum;
    });
}

// `first` becomes the index of the first value that is not finite, if that is less.
KERNEL not_finite(const float *values, u64 *first, u64 n) {
    const bool wide = aligned(values);
    each_four(n, [&](u64 at, u64 count) {
        const Four value = load(values, at, count, wide);
        for (u64 i = 0; i < count; i++) {
            if (!is_finite(value.of[i])) atomicMin(first, at + i);
        }
    });
}

// What a value adds to a digest: its place and its bits, mixed (the finalizer of splitmix64).
__device__ __forceinline__ u64 mixed(u64 index, u32 value) {
    u64 z = (index << 32 | value) + (index >> 32) * 0x9e3779b97f4a7c15ull + 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

// Adds the digest of the values to `sum`: a sum, so that it does not matter who adds first.
KERNEL digest(const float *values, u64 *sum, u64 n) {
    __shared__ u64 sums[THREADS];
    const bool wide = aligned(values);
    u64 own = 0;
    each_four(n, [&](u64 at, u64 count) {
        const Four value = load(values, at, count, wide);
        for (u64 i = 0; i < count; i++) own += mixed(at + i, bits(value.of[i]));
    });
    sums[threadIdx.x] = own;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(sum, sums[0]);
}

// ---- wire types ----------------------------------------------------------------------------------------------------------------

// The upper half of a float32, rounded to nearest even; finite values stay finite.
struct Bfloat16 {
    // The bits of the nearest one, as float32.
    static __device__ __forceinline__ u32 round(u32 value) {
        const u32 magnitude = value & 0x7fffffffu;
        const u32 capped = magnitude < 0x7f7f0000u ? magnitude : 0x7f7f0000u;
        const u32 nearest = capped + 0x7fff + (capped >> 16 & 1);
        const u32 beyond = magnitude > 0x7f800000u ? magnitude | 0x00400000u : magnitude;
        const u32 rounded = magnitude < 0x7f800000u ? nearest : beyond;
        return (rounded & 0x7fff0000u) | (value & 0x80000000u);
    }

    // Writes value `i`; what the receiver will see. All threads of a block call it, `inside` or not.
    static __device__ __forceinline__ float encode(u8 *bytes, u64 i, bool inside, float value) {
        const u32 rounded = round(bits(value));
        if (inside) ((u16 *)bytes)[i] = (u16)(rounded >> 16);
        return number(rounded);
    }

    static __device__ __forceinline__ float decode(const u8 *bytes, u64 i) { return number((u32)((const u16 *)bytes)[i] << 16); }
};

// A scale for each block and a signed byte for each value.
struct Int8 {
    static __device__ __forceinline__ float encode(u8 *bytes, u64 i, bool inside, float value) {
        __shared__ u32 largest[THREADS];
        // As integers, magnitudes are in the order of the numbers, and a NaN is above all.
        largest[threadIdx.x] = inside ? bits(value) & 0x7fffffffu : 0;
        for (u32 half = THREADS / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half) {
                const u32 other = largest[threadIdx.x + half];
                if (other > largest[threadIdx.x]) largest[threadIdx.x] = other;
            }
        }
        __syncthreads();
        const float most = number(largest[0]);
        // The next block of values may not write before everybody has read.
        __syncthreads();
        float scale = number(bits(most / 127.0f) & 0xffffff80u);
        if (scale < 1.17549435e-38f) scale = 1.17549435e-38f;
        // Not a number as a whole: then the bytes say nothing, and are the same everywhere.
        const bool whole = is_finite(most);
        if (!whole) scale = number(0x7fc00000u);
        u8 *block = bytes + i / BLOCK_ELEMENTS * INT8_BLOCK_BYTES;
        const float shifted = value * (1.0f / scale) + 12582912.0f;
        if (inside) {
            if (i % BLOCK_ELEMENTS == 0) *(float *)block = scale;
            block[4 + i % BLOCK_ELEMENTS] = whole ? (u8)bits(shifted) : 0;
        }
        return (shifted - 12582912.0f) * scale;
    }

    static __device__ __forceinline__ float decode(const u8 *bytes, u64 i) {
        const u8 *block = bytes + i / BLOCK_ELEMENTS * INT8_BLOCK_BYTES;
        return (float)(signed char)block[4 + i % BLOCK_ELEMENTS] * *(const float *)block;
    }
};

// Zero instead of a subnormal number.
__device__ __forceinline__ float normal(float value) { return fabsf(value) < 1.17549435e-38f ? 0.0f : value; }

// Encodes wanted(i) for every value and calls keep(i, wanted, what the receiver will see).
template <class Wire, class Wanted, class Keep> __device__ __forceinline__ void encode(u8 *bytes, u64 n, Wanted wanted, Keep keep) {
    for (u64 from = (u64)blockIdx.x * BLOCK_ELEMENTS; from < n; from += (u64)gridDim.x * BLOCK_ELEMENTS) {
        const u64 i = from + threadIdx.x;
        const bool inside = i < n;
        const float value = inside ? wanted(i) : 0.0f;
        const float sent = Wire::encode(bytes, i, inside, value);
        if (inside) keep(i, value, sent);
    }
}

template <class Wire> __device__ __forceinline__ void gossip(const float *numerators, float *residual, u8 *bytes, u64 n, float factor) {
    const float inverse = 1.0f / factor;
    auto wanted = [&](u64 i) {
        const float paid = numerators[i] + inverse * residual[i];
        return is_finite(paid) ? paid : numerators[i];
    };
    encode<Wire>(bytes, n, wanted, [&](u64 i, float, float sent) {
        const float left = residual[i] + factor * (numerators[i] - sent);
        if (is_finite(left)) residual[i] = normal(left);
    });
}

template <class Wire>
__device__ __forceinline__ void contribute(
    const float *values, const float *reference, const float *residual, u8 *bytes, float *next, u64 n, float weight) {
    auto wanted = [&](u64 i) {
        const float moved = values[i] - weight * reference[i];
        return residual ? moved + residual[i] : moved;
    };
    encode<Wire>(bytes, n, wanted, [&](u64 i, float wanted, float sent) { next[i] = normal(wanted - sent); });
}

template <class Wire> __device__ __forceinline__ void publish(float *values, const float *reference, u8 *bytes, float *dropped, u64 n) {
    encode<Wire>(bytes, n, [&](u64 i) { return values[i] - reference[i]; }, [&](u64 i, float, float sent) {
        const float published = reference[i] + sent;
        dropped[i] = normal(values[i] - published);
        values[i] = published;
    });
}

template <class Wire> __device__ __forceinline__ void in_place(float *values, u8 *bytes, u64 n) {
    encode<Wire>(bytes, n, [&](u64 i) { return values[i]; }, [&](u64 i, float, float sent) { values[i] = sent; });
}

template <class Wire, class Rule> __device__ __forceinline__ void decode(const u8 *bytes, u64 n, Rule rule) {
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) rule(i, Wire::decode(bytes, i));
}

// Each for both wire types; the formulas stand in `slowmo_protocol::encoding`. `residual` of a contribution may be null: zeros.
#define WIRE(name, Wire)                                                                                                            \
    KERNEL encode_gossip_##name(const float *numerators, float *residual, u8 *bytes, u64 n, float factor) {                         \
        gossip<Wire>(numerators, residual, bytes, n, factor);                                                                       \
    }                                                                                                                               \
    KERNEL encode_contribution_##name(                                                                                              \
        const float *values, const float *reference, const float *residual, u8 *bytes, float *next, u64 n, float weight) {          \
        contribute<Wire>(values, reference, residual, bytes, next, n, weight);                                                      \
    }                                                                                                                               \
    KERNEL encode_publication_##name(float *values, const float *reference, u8 *bytes, float *dropped, u64 n) {                     \
        publish<Wire>(values, reference, bytes, dropped, n);                                                                        \
    }                                                                                                                               \
    KERNEL encode_##name(float *values, u8 *bytes, u64 n) { in_place<Wire>(values, bytes, n); }                                     \
    KERNEL decode_##name(const u8 *bytes, float *target, u64 n) {                                                                   \
        decode<Wire>(bytes, n, [&](u64 i, float value) { target[i] = value; });                                                     \
    }                                                                                                                               \
    KERNEL accumulate_##name(const u8 *bytes, float *target, u64 n, float scale) {                                                  \
        decode<Wire>(bytes, n, [&](u64 i, float value) { target[i] += scale * value; });                                            \
    }

WIRE(bf16, Bfloat16)
WIRE(int8, Int8)
