// What several kernels use: conversions, matrix instructions, reductions. Every order of additions here is fixed by positions alone.

#include "abi.cuh"

#define DEVICE __device__ __forceinline__
#define INFINITY __int_as_float(0x7f800000)

// Another grid may start while this one runs; and this one waits for what the grid before it writes.
DEVICE void start_next() { asm volatile("griddepcontrol.launch_dependents;"); }
DEVICE void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }

// The nearest bf16, ties to even, in the upper half.
DEVICE u32 bf16_bits(float value) {
    u32 bits = __float_as_uint(value);
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
DEVICE float round_bf16(float value) { return value != value ? value : as_float(bf16_bits(value) << 16); }
// Two values as a pair of bf16, the first in the lower half.
DEVICE u32 pack_bf16(float low, float high) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
DEVICE float bf16_low(u32 pair) { return as_float(pair << 16); }
DEVICE float bf16_high(u32 pair) { return as_float(pair & 0xffff0000u); }

// An e4m3 code's value: its fields moved into an f32 are 2^-120 of it, subnormal ones included.
DEVICE float e4m3_value(u32 code) { return as_float((code & 0x80u) << 24 | (code & 0x7fu) << 20) * 0x1p120f; }

// Four e4m3 codes as the bf16 pairs (0, 2) and (1, 3), each 2^-120 of its value: the fields moved into place, subnormal ones included.
DEVICE void e4m3_pairs(u32 codes, u32 &even, u32 &odd) {
    even = ((codes << 4) & 0x07f007f0u) | ((codes << 8) & 0x80008000u);
    odd = ((codes >> 4) & 0x07f007f0u) | (codes & 0x80008000u);
}
// Two words of bf16 as the same pairs.
DEVICE void bf16_pairs(u32 first, u32 second, u32 &even, u32 &odd) {
    even = __byte_perm(first, second, 0x5410);
    odd = __byte_perm(first, second, 0x7632);
}
// What activations are multiplied by before, so that a product with 2^-120 of a weight is far from both ends of f32; and what a block's sum
// is multiplied by after, beside its scale.
constexpr float RAISED = 0x1p60f, E4M3_LOWERED = 0x1p60f, BF16_LOWERED = 0x1p-60f;
// Four activations as the pairs that belong to those of the weights.
DEVICE uint2 raised_pairs(const float (&v)[4]) {
    return make_uint2(pack_bf16(v[0] * RAISED, v[2] * RAISED), pack_bf16(v[1] * RAISED, v[3] * RAISED));
}

// The nearest e4m3, ties to even, as f32; `value` lies within +-448.
DEVICE float round_e4m3(float value) {
    u32 bits = __float_as_uint(value);
    if (fabsf(value) < 0x1p-6f) return copysignf(rintf(fabsf(value) * 512.0f) * (1.0f / 512.0f), value);
    return as_float((bits + 0x7ffffu + ((bits >> 20) & 1u)) & 0xfff00000u);
}

// The scale of a block whose largest magnitude is `largest`: the power of two from max(largest, 1e-4) / 448 upwards.
DEVICE float quantum(float largest) {
    u32 bits = __float_as_uint(fmaxf(largest, 1e-4f) * (1.0f / 448.0f));
    return as_float(((bits + 0x7fffffu) >> 23) << 23);
}
// Through e4m3 and back: exact in bf16, since the scale is a power of two.
DEVICE float quantise(float value, float scale) {
    float inverse = as_float((254u << 23) - __float_as_uint(scale));
    return round_e4m3(fminf(fmaxf(value * inverse, -448.0f), 448.0f)) * scale;
}

// d += a . b for a 16 x 16 tile a and a 16 x 8 tile b of bf16.
DEVICE void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Nanoseconds on the card's clock.
DEVICE u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

DEVICE u32 shared_address(const void *at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }

DEVICE void load_matrix(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
DEVICE void load_matrix_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// Sixteen bytes from global to shared memory, or zeros.
DEVICE void copy_async(u32 to, const void *from, bool real) {
    u32 bytes = real ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Weights are read once: they need no place in the first cache.
DEVICE uint4 load_once(const void *at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

DEVICE float warp_sum(float value) {
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
    return value;
}
DEVICE float warp_max(float value) {
    for (int step = 16; step; step >>= 1) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
    return value;
}
// The sum over a block of at most 32 warps; `scratch` has 33 places. Everybody gets it.
template <class T>
DEVICE T block_sum(T value, T *scratch) {
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (threadIdx.x % 32 == 0) scratch[warp] = value;
    __syncthreads();
    T total = 0;
    for (u32 i = 0; i < warps; i++) total += scratch[i];
    __syncthreads();
    return total;
}

// Where a position's row of a cache lies, in elements from the pool's start.
DEVICE u64 cache_row(const Cache &cache, const u32 *pages, u32 stride, u32 sequence, u32 position) {
    u32 page = pages[static_cast<u64>(sequence) * stride + position / PAGE];
    return (static_cast<u64>(page) * PAGE + position % PAGE) * cache.width;
}
DEVICE float cache_value(const Cache &cache, u64 at, u32 mode) {
    if (mode == EXACT) return reinterpret_cast<const float *>(cache.pool)[at];
    return as_float(static_cast<u32>(reinterpret_cast<const u16 *>(cache.pool)[at]) << 16);
}

// How many warps share a row's blocks of columns. No result depends on it.
__host__ __device__ __forceinline__ u32 splits(u32 blocks) { return blocks >= 16 ? 8 : blocks >= 4 ? 4 : blocks >= 2 ? 2 : 1; }
