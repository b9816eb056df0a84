// Random weights made where they are used, and plain reading for the floor of a measurement.

#include "common.cuh"

struct Fill {
    u8 *at;
    u64 count;
    u32 dtype, seed;
    float scale;
    u32 _pad;
};

static DEVICE u32 mixed(u64 v) {
    v ^= v >> 31, v *= 0x7fb5d329728ea185ull, v ^= v >> 27, v *= 0x81dadef4bc2dd44dull, v ^= v >> 33;
    return static_cast<u32>(v);
}

// Uniform numbers in +-scale; e4m3 codes without NaN.
extern "C" __global__ void fill(const __grid_constant__ Fill p) {
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < p.count; i += static_cast<u64>(gridDim.x) * blockDim.x) {
        u32 random = mixed(i * 0x9e3779b97f4a7c15ull + p.seed);
        float value = (static_cast<float>(random >> 8) * 0x1p-23f - 1.0f) * p.scale;
        if (p.dtype == F32) reinterpret_cast<float *>(p.at)[i] = value;
        else if (p.dtype == BF16) reinterpret_cast<u16 *>(p.at)[i] = static_cast<u16>(bf16_bits(value));
        else p.at[i] = static_cast<u8>((random & 0x80) | (random >> 8) % 0x7f);
    }
}

extern "C" __global__ void __launch_bounds__(512) read_all(const uint4 *at, u64 count, u32 *sink) {
    u32 seen = 0;
    u64 step = static_cast<u64>(gridDim.x) * blockDim.x, i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x;
    for (; i + 7 * step < count; i += 8 * step) {
        uint4 v[8];
        for (int j = 0; j < 8; j++) v[j] = load_once(at + i + j * step);
        for (int j = 0; j < 8; j++) seen ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < count; i += step) seen ^= at[i].x;
    if (seen == 0x12345678u) *sink = seen;
}
