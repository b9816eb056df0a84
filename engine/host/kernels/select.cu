// The lightning indexer: scores of cached keys, and the positions that attention may see.
//
// A score is a sum over heads in a fixed order that neither the lane nor the key's place changes.

#include "common.cuh"

static DEVICE void cooperate(const Select &p, float *q, float *w, u32 t) {
    for (u32 i = threadIdx.x; i < p.heads * p.dim; i += 256) q[i] = p.q[static_cast<u64>(t) * p.q_stride + i];
    for (u32 i = threadIdx.x; i < p.heads; i += 256)
        w[i] = p.weights[static_cast<u64>(t) * p.weights_stride + i] * p.head_scale;
    __syncthreads();
}

// f32, any shape: a warp a key.
extern "C" __global__ void __launch_bounds__(256) index_scores_plain(const __grid_constant__ Select p) {
    extern __shared__ float room[];
    start_next();
    wait_for_previous();
    u32 t = blockIdx.y + p.first_lane;
    Lane lane = p.lane[t];
    u32 count = lane.position + 1;
    if (count <= p.keep) return;
    float *q = room, *w = room + p.heads * p.dim;
    cooperate(p, q, w, t);
    u32 warp = threadIdx.x / 32, i = threadIdx.x % 32;
    for (u32 u = blockIdx.x * 8 + warp; u < count; u += gridDim.x * 8) {
        u64 at = cache_row(p.keys, p.pages, p.pages_stride, lane.sequence, u);
        float score = 0;
        for (u32 h = 0; h < p.heads; h++) {
            float dot = 0;
            for (u32 c = i; c < p.dim; c += 32) dot = __fmaf_rn(q[h * p.dim + c], cache_value(p.keys, at + c, p.mode), dot);
            dot = warp_sum(dot);
            score = __fmaf_rn(w[h], fmaxf(dot * p.key_scale, 0.0f), score);
        }
        if (i == 0) p.scores[static_cast<u64>(blockIdx.y) * p.scores_stride + u] = score;
    }
}

// bf16 keys of width 128: tiles of 64 keys, eight for each warp, sixteen heads an instruction.
constexpr u32 DIM = 128;
extern "C" __global__ void __launch_bounds__(256) index_scores(const __grid_constant__ Select p) {
    extern __shared__ __align__(16) u8 shared[];
    start_next();
    wait_for_previous();
    u32 t = blockIdx.y + p.first_lane;
    Lane lane = p.lane[t];
    u32 count = lane.position + 1;
    if (count <= p.keep || blockIdx.x * 64 >= count) return;
    // Queries as bf16 [heads rounded up to 16, 128]; rows have 32 chunks of 16 bytes... 16 of them, swizzled by the row's last bits.
    u32 tiles = (p.heads + 15) / 16;
    u16 *q = reinterpret_cast<u16 *>(shared);
    float *w = reinterpret_cast<float *>(shared + tiles * 16 * DIM * 2);
    for (u32 i = threadIdx.x; i < tiles * 16 * DIM; i += 256) {
        u32 head = i / DIM, c = i % DIM, chunk = c / 8;
        float v = head < p.heads ? p.q[static_cast<u64>(t) * p.q_stride + i] : 0.0f;
        q[head * DIM + ((chunk ^ (head & 1)) * 8) + c % 8] = static_cast<u16>(bf16_bits(v));
    }
    for (u32 i = threadIdx.x; i < tiles * 16; i += 256)
        w[i] = i < p.heads ? p.weights[static_cast<u64>(t) * p.weights_stride + i] * p.head_scale : 0.0f;
    __syncthreads();
    u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    for (u32 tile = blockIdx.x; tile * 64 < count; tile += gridDim.x) {
        u32 key = min(tile * 64 + warp * 8 + g, count - 1);
        const u16 *row =
            reinterpret_cast<const u16 *>(p.keys.pool) + cache_row(p.keys, p.pages, p.pages_stride, lane.sequence, key);
        // Thread c of four has columns 64 h + 16 c .. + 16 of both halves.
        uint4 k[2][2];
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 2; i++) k[h][i] = *reinterpret_cast<const uint4 *>(row + 64 * h + 16 * c + 8 * i);
        float score0 = 0, score1 = 0;
        for (u32 m = 0; m < tiles; m++) {
            float sum[4] = {0, 0, 0, 0};
            u32 head0 = m * 16 + g, head1 = head0 + 8;
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    u32 chunk = h * 8 + c * 2 + i;
                    uint4 a = *reinterpret_cast<const uint4 *>(q + head0 * DIM + ((chunk ^ (head0 & 1)) * 8));
                    uint4 b = *reinterpret_cast<const uint4 *>(q + head1 * DIM + ((chunk ^ (head1 & 1)) * 8));
                    mma(sum, a.x, b.x, a.y, b.y, k[h][i].x, k[h][i].y);
                    mma(sum, a.z, b.z, a.w, b.w, k[h][i].z, k[h][i].w);
                }
            score0 = __fmaf_rn(w[head0], fmaxf(sum[0] * p.key_scale, 0.0f), score0);
            score1 = __fmaf_rn(w[head0], fmaxf(sum[1] * p.key_scale, 0.0f), score1);
            score0 = __fmaf_rn(w[head1], fmaxf(sum[2] * p.key_scale, 0.0f), score0);
            score1 = __fmaf_rn(w[head1], fmaxf(sum[3] * p.key_scale, 0.0f), score1);
        }
        for (int step = 4; step <= 16; step *= 2) {
            score0 += __shfl_xor_sync(~0u, score0, step);
            score1 += __shfl_xor_sync(~0u, score1, step);
        }
        u32 u = tile * 64 + warp * 8 + 2 * c;
        float *out = p.scores + static_cast<u64>(blockIdx.y) * p.scores_stride;
        if (g == 0 && u < count) out[u] = score0;
        if (g == 0 && u + 1 < count) out[u + 1] = score1;
    }
}

// Larger scores have larger keys; the order is total.
static DEVICE u32 order_of(float score) {
    u32 bits = __float_as_uint(score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The `keep` positions with the largest scores, ascending; of equal scores the lower positions. The threshold is found digit by digit.
extern "C" __global__ void __launch_bounds__(1024) select_top(const __grid_constant__ Select p) {
    __shared__ u32 histogram[256], totals[32];
    __shared__ u32 prefix, wanted;
    start_next();
    wait_for_previous();
    u32 t = blockIdx.x + p.first_lane, count = p.lane[t].position + 1;
    u32 *out = p.selection + static_cast<u64>(t) * p.keep;
    if (count <= p.keep) {
        for (u32 u = threadIdx.x; u < count; u += 1024) out[u] = u;
        if (threadIdx.x == 0) p.count[t] = count;
        return;
    }
    const float *scores = p.scores + static_cast<u64>(blockIdx.x) * p.scores_stride;
    if (threadIdx.x == 0) prefix = 0, wanted = p.keep;
    for (int digit = 3; digit >= 0; digit--) {
        for (u32 i = threadIdx.x; i < 256; i += 1024) histogram[i] = 0;
        __syncthreads();
        u32 known = digit == 3 ? 0 : ~0u << (8 * (digit + 1)), want = prefix;
        // Eight at a time are under way.
        for (u32 base = 0; base < count; base += 8 * 1024) {
            float4 v[2];
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                u32 u = base + j * 4096 + 4 * threadIdx.x;
                v[j] = u < count ? *reinterpret_cast<const float4 *>(scores + u) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                u32 u = base + j * 4096 + 4 * threadIdx.x;
                float score[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    u32 key = order_of(score[k]);
                    if (u + k < count && (key & known) == want) atomicAdd(&histogram[key >> (8 * digit) & 255], 1);
                }
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            // Each thread has eight bins, the highest first.
            u32 mine = 0, i = threadIdx.x;
            for (u32 b = 0; b < 8; b++) mine += histogram[255 - (i * 8 + b)];
            u32 before = mine;
            for (int step = 1; step < 32; step *= 2) {
                u32 other = __shfl_up_sync(~0u, before, step);
                if (i >= step) before += other;
            }
            before -= mine;
            u32 need = wanted;
            __syncwarp();
            if (before < need && need <= before + mine) {
                for (u32 b = 0; b < 8; b++) {
                    u32 bin = 255 - (i * 8 + b);
                    if (need <= before + histogram[bin]) {
                        prefix = want | bin << (8 * digit);
                        wanted = need - before;
                        break;
                    }
                    before += histogram[bin];
                }
            }
        }
        __syncthreads();
    }
    u32 threshold = prefix, equals = wanted, warp = threadIdx.x / 32, i = threadIdx.x % 32;
    // Positions are written in order: each thread has four neighbouring ones, those before it are counted. Lower halves count larger scores, upper
    // halves equal ones. Rows of scores are whole multiples of four long.
    u32 written = 0, met = 0;
    float4 next = 4 * threadIdx.x < count ? *reinterpret_cast<const float4 *>(scores + 4 * threadIdx.x) : make_float4(0, 0, 0, 0);
    for (u32 base = 0; base < count; base += 4096) {
        u32 u = base + 4 * threadIdx.x;
        float score[4] = {next.x, next.y, next.z, next.w};
        next = u + 4096 < count ? *reinterpret_cast<const float4 *>(scores + u + 4096) : make_float4(0, 0, 0, 0);
        bool more[4], same[4];
        u32 mine = 0;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 key = order_of(score[j]);
            more[j] = u + j < count && key > threshold, same[j] = u + j < count && key == threshold;
            mine += more[j] + (same[j] << 16);
        }
        u32 up_to_me = mine;
        for (int step = 1; step < 32; step *= 2) {
            u32 other = __shfl_up_sync(~0u, up_to_me, step);
            if (i >= step) up_to_me += other;
        }
        if (i == 31) totals[warp] = up_to_me;
        __syncthreads();
        u32 total = totals[i], up_to_warp = total;
        for (int step = 1; step < 32; step *= 2) {
            u32 other = __shfl_up_sync(~0u, up_to_warp, step);
            if (i >= step) up_to_warp += other;
        }
        u32 before = __shfl_sync(~0u, up_to_warp - total, warp) + up_to_me - mine, all = __shfl_sync(~0u, up_to_warp, 31);
        u32 met_before = met + (before >> 16), place = written + (before & 0xffff) + min(met_before, equals) - min(met, equals);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            bool taken = same[j] && met_before < equals;
            if (more[j] || taken) out[place++] = u + j;
            met_before += same[j];
        }
        written += (all & 0xffff) + min(met + (all >> 16), equals) - min(met, equals);
        met += all >> 16;
        __syncthreads();
    }
    if (threadIdx.x == 0) p.count[t] = p.keep;
}
