// Attention in the latent space over a selection of positions (MLA absorbed).
//
// The order: a selection is cut into parts of 64 positions by place. Within a part, logits by matrix instructions over the latent columns and then the
// rotary ones, the part's largest logit subtracted, exponentials, and the weighted sum of latent vectors, the weights as two bf16 (the value and
// what its rounding left). Parts are then joined in ascending order, each time rescaled to the larger maximum. `attend` with several blocks for
// a lane's parts and `attend_merge` do the same operations as `attend` with one block for all of them.

#include "common.cuh"

// A head's logits, and later in the same place its weights: the rounded ones and what rounding left.
constexpr u32 HEADS = 16, LOGITS_STRIDE = KEYS + 12, WEIGHTS_STRIDE = 2 * LOGITS_STRIDE, LEFT = KEYS + 8;

// acc and sum so far, to which a part with its own maximum is joined.
static DEVICE float joined(float acc, float a, float part, float b) { return __fmaf_rn(acc, a, __fmul_rn(part, b)); }

template <u32 TILES>  // tiles of eight latent columns for each of the eight warps
static DEVICE void attend_lane(const Attend &p, u8 *shared) {
    u32 warp = threadIdx.x / 32, i = threadIdx.x % 32, g = i / 4, c = i % 4;
    u32 t = blockIdx.y, first_head = blockIdx.x * HEADS;
    u32 latent = p.latent.width, rope = p.rope.width, stride = latent + rope + 8;  // of a row of keys, in elements
    u16 *keys = reinterpret_cast<u16 *>(shared);
    u16 *query = keys + KEYS * stride;
    float *logits = reinterpret_cast<float *>(query + HEADS * stride);
    u16 *high = reinterpret_cast<u16 *>(logits), *low = high + LEFT;
    float *largest = logits + HEADS * LOGITS_STRIDE, *sums = largest + HEADS;
    Lane lane = p.lane[t];
    u32 count = p.count[t];
    const u32 *selection = p.selection + static_cast<u64>(t) * p.keep;
    bool alone = gridDim.z == 1;

    u32 chunks = (latent + rope) / 8, latent_chunks = latent / 8;
    __shared__ u64 row_at[2][KEYS];
    // Four columns at a time; heads that are not there are zero.
#pragma unroll 4
    for (u32 j = threadIdx.x; j < HEADS * (latent + rope) / 4; j += 256) {
        u32 head = j / ((latent + rope) / 4), column = j % ((latent + rope) / 4) * 4, h = first_head + head;
        float4 v = make_float4(0, 0, 0, 0);
        if (h < p.heads)
            v = *reinterpret_cast<const float4 *>(
                column < latent ? p.q_latent + static_cast<u64>(t) * p.q_stride + h * latent + column
                                : p.q_rope + static_cast<u64>(t) * p.rope_row + h * p.rope_stride + p.rope_offset + column - latent);
        *reinterpret_cast<uint2 *>(query + head * stride + column) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
    }

    float acc[TILES][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    for (u32 part = blockIdx.z; part * KEYS < count; part += gridDim.z) {
        u32 n = min(KEYS, count - part * KEYS);
        // Where the keys lie, once for each; then all their pieces at one go.
        if (threadIdx.x < 2 * KEYS) {
            u32 key = threadIdx.x % KEYS, position = selection[part * KEYS + min(key, n - 1)];
            const Cache &cache = threadIdx.x < KEYS ? p.latent : p.rope;
            row_at[threadIdx.x / KEYS][key] =
                reinterpret_cast<u64>(cache.pool) + 2 * cache_row(cache, p.pages, p.pages_stride, lane.sequence, position);
        }
        __syncthreads();
        for (u32 j = threadIdx.x; j < KEYS * chunks; j += 256) {
            u32 key = j / chunks, chunk = j % chunks;
            u64 from = chunk < latent_chunks ? row_at[0][key] + chunk * 16 : row_at[1][key] + (chunk - latent_chunks) * 16;
            copy_async(shared_address(keys + key * stride + chunk * 8), reinterpret_cast<const void *>(from), key < n);
        }
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        {
            // Logits of eight keys for each warp. Rows of `a`: heads; of `b`: keys.
            float sum[4] = {0, 0, 0, 0};
            u32 a_at = shared_address(query + (i % 16) * stride + (i / 16) * 8);
            u32 b_at = shared_address(keys + (warp * 8 + i % 8) * stride + (i / 8) * 8);
            for (u32 column = 0; column < latent + rope; column += 32) {
                u32 a[4], b[4];
                load_matrix(b, b_at + column * 2);
                load_matrix(a, a_at + column * 2);
                mma(sum, a[0], a[1], a[2], a[3], b[0], b[1]);
                if (column + 16 < latent + rope) {
                    load_matrix(a, a_at + (column + 16) * 2);
                    mma(sum, a[0], a[1], a[2], a[3], b[2], b[3]);
                }
            }
            for (int j = 0; j < 4; j++) {
                u32 head = g + (j / 2) * 8, key = warp * 8 + 2 * c + j % 2;
                logits[head * LOGITS_STRIDE + key] = key < n ? __fmul_rn(sum[j], p.scale) : -INFINITY;
            }
        }
        __syncthreads();
        for (u32 head = warp * 2; head < warp * 2 + 2; head++) {
            float first = logits[head * LOGITS_STRIDE + i], second = logits[head * LOGITS_STRIDE + i + 32];
            float m = warp_max(fmaxf(first, second));
            first = expf(first - m), second = expf(second - m);
            float s = warp_sum(__fadd_rn(first, second));
            // All lanes have read their logits of this head.
            __syncwarp();
            float first_high = round_bf16(first), second_high = round_bf16(second);
            high[head * WEIGHTS_STRIDE + i] = static_cast<u16>(bf16_bits(first));
            high[head * WEIGHTS_STRIDE + i + 32] = static_cast<u16>(bf16_bits(second));
            low[head * WEIGHTS_STRIDE + i] = static_cast<u16>(bf16_bits(first - first_high));
            low[head * WEIGHTS_STRIDE + i + 32] = static_cast<u16>(bf16_bits(second - second_high));
            if (i == 0) largest[head] = m, sums[head] = s;
        }
        __syncthreads();
        float o[TILES][4] = {};
        for (u32 step = 0; step < KEYS / 16; step++) {
            u32 a[4], rest[4];
            u32 weight_at = (i % 16) * WEIGHTS_STRIDE + step * 16 + (i / 16) * 8;
            load_matrix(a, shared_address(high + weight_at));
            load_matrix(rest, shared_address(low + weight_at));
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile += 2) {
                u32 b[4], column = (warp * TILES + tile) * 8;
                // Keys step*16 .. +16 by sixteen columns, transposed: b[0], b[1] for the first eight columns, b[2], b[3] for the rest.
                load_matrix_transposed(b, shared_address(keys + (step * 16 + i % 16) * stride + column + (i / 16) * 8));
                mma(o[tile], a[0], a[1], a[2], a[3], b[0], b[1]);
                mma(o[tile], rest[0], rest[1], rest[2], rest[3], b[0], b[1]);
                mma(o[tile + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
                mma(o[tile + 1], rest[0], rest[1], rest[2], rest[3], b[2], b[3]);
            }
        }
        if (alone) {
            for (int half = 0; half < 2; half++) {
                float m = largest[g + half * 8], s = sums[g + half * 8], above = fmaxf(top[half], m);
                float x = expf(top[half] - above), y = expf(m - above);
                total[half] = joined(total[half], x, s, y);
                top[half] = above;
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++)
                    for (int j = 0; j < 2; j++) acc[tile][half * 2 + j] = joined(acc[tile][half * 2 + j], x, o[tile][half * 2 + j], y);
            }
        } else {
            u64 at = static_cast<u64>(t) * p.parts + part;
            for (int half = 0; half < 2; half++) {
                u32 h = first_head + g + half * 8;
                if (h >= p.heads) continue;
                if (warp == 0 && c == 0)
                    p.part_max[at * p.heads + h] = largest[g + half * 8], p.part_sum[at * p.heads + h] = sums[g + half * 8];
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++)
                    *reinterpret_cast<float2 *>(p.part + (at * p.heads + h) * latent + (warp * TILES + tile) * 8 + 2 * c) =
                        make_float2(o[tile][half * 2], o[tile][half * 2 + 1]);
            }
        }
        __syncthreads();
    }
    if (!alone) return;
    for (int half = 0; half < 2; half++) {
        u32 h = first_head + g + half * 8;
        if (h >= p.heads) continue;
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
            for (int j = 0; j < 2; j++) {
                float v = acc[tile][half * 2 + j] / total[half];
                p.out[static_cast<u64>(t) * p.out_stride + h * latent + (warp * TILES + tile) * 8 + 2 * c + j] =
                    p.flags & ROUND ? round_bf16(v) : v;
            }
    }
}

extern "C" __global__ void __launch_bounds__(256) attend(const __grid_constant__ Attend p) {
    extern __shared__ __align__(128) u8 shared[];
    start_next();
    wait_for_previous();
    if (p.latent.width == 512) attend_lane<8>(p, shared);
    else attend_lane<2>(p, shared);
}

// Joins the parts of one head of one lane.
constexpr u32 MAX_PARTS = 64;
extern "C" __global__ void __launch_bounds__(128) attend_merge(const __grid_constant__ Attend p) {
    __shared__ float tops[MAX_PARTS], totals[MAX_PARTS];
    start_next();
    wait_for_previous();
    u32 h = blockIdx.x, t = blockIdx.y, latent = p.latent.width, parts = (p.count[t] + KEYS - 1) / KEYS;
    const float *at = p.part + (static_cast<u64>(t) * p.parts * p.heads + h) * latent + threadIdx.x;
    u64 step = static_cast<u64>(p.heads) * latent;
    float acc[4] = {}, top = -INFINITY, total = 0;
    for (u32 base = 0; base < parts; base += MAX_PARTS) {
        u32 some = min(parts - base, MAX_PARTS);
        if (threadIdx.x < some) {
            u64 place = (static_cast<u64>(t) * p.parts + base + threadIdx.x) * p.heads + h;
            tops[threadIdx.x] = p.part_max[place], totals[threadIdx.x] = p.part_sum[place];
        }
        __syncthreads();
        for (u32 first = 0; first < some; first += 8) {
            float v[8][4];
#pragma unroll
            for (u32 i = 0; i < 8; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++)
                    v[i][j] = first + i < some && j * 128 + threadIdx.x < latent ? at[(base + first + i) * step + j * 128] : 0.0f;
#pragma unroll
            for (u32 i = 0; i < 8; i++)
                if (first + i < some) {
                    float m = tops[first + i], above = fmaxf(top, m), x = expf(top - above), y = expf(m - above);
                    total = joined(total, x, totals[first + i], y);
                    top = above;
                    for (u32 j = 0; j < 4; j++) acc[j] = joined(acc[j], x, v[i][j], y);
                }
        }
        __syncthreads();
    }
    for (u32 j = 0; j < 4; j++) {
        u32 column = j * 128 + threadIdx.x;
        float v = acc[j] / total;
        if (column < latent) p.out[static_cast<u64>(t) * p.out_stride + h * latent + column] = p.flags & ROUND ? round_bf16(v) : v;
    }
}

// f32, any width: one block for a head of a lane, the whole selection's logits in shared memory.
extern "C" __global__ void __launch_bounds__(128) attend_plain(const __grid_constant__ Attend p) {
    extern __shared__ float room[];
    __shared__ float scratch[33];
    __shared__ double wide[33];
    start_next();
    wait_for_previous();
    u32 h = blockIdx.x, t = blockIdx.y, latent = p.latent.width, rope = p.rope.width, count = p.count[t];
    u32 warp = threadIdx.x / 32, i = threadIdx.x % 32;
    float *query = room, *weight = room + latent + rope;
    Lane lane = p.lane[t];
    const u32 *selection = p.selection + static_cast<u64>(t) * p.keep;
    for (u32 c = threadIdx.x; c < latent; c += 128) query[c] = p.q_latent[static_cast<u64>(t) * p.q_stride + h * latent + c];
    for (u32 c = threadIdx.x; c < rope; c += 128)
        query[latent + c] = p.q_rope[static_cast<u64>(t) * p.rope_row + h * p.rope_stride + p.rope_offset + c];
    __syncthreads();
    for (u32 u = warp; u < count; u += 4) {
        u64 a = cache_row(p.latent, p.pages, p.pages_stride, lane.sequence, selection[u]);
        u64 b = cache_row(p.rope, p.pages, p.pages_stride, lane.sequence, selection[u]);
        float dot = 0, turned = 0;
        for (u32 c = i; c < latent; c += 32) dot = __fmaf_rn(query[c], cache_value(p.latent, a + c, p.mode), dot);
        for (u32 c = i; c < rope; c += 32) turned = __fmaf_rn(query[latent + c], cache_value(p.rope, b + c, p.mode), turned);
        float sum = warp_sum(dot) + warp_sum(turned);
        if (i == 0) weight[u] = sum * p.scale;
    }
    __syncthreads();
    float most = -INFINITY;
    for (u32 u = threadIdx.x; u < count; u += 128) most = fmaxf(most, weight[u]);
    most = warp_max(most);
    if (i == 0) scratch[warp] = most;
    __syncthreads();
    for (u32 w = 0; w < 4; w++) most = fmaxf(most, scratch[w]);
    double total = 0;
    for (u32 u = threadIdx.x; u < count; u += 128) {
        weight[u] = expf(weight[u] - most);
        total += weight[u];
    }
    __syncthreads();
    float sum = static_cast<float>(block_sum(total, wide));
    for (u32 c = threadIdx.x; c < latent; c += 128) {
        float v = 0;
        for (u32 u = 0; u < count; u++) {
            u64 at = cache_row(p.latent, p.pages, p.pages_stride, lane.sequence, selection[u]);
            v = __fmaf_rn(weight[u], cache_value(p.latent, at + c, p.mode), v);
        }
        v /= sum;
        p.out[static_cast<u64>(t) * p.out_stride + h * latent + c] = p.flags & ROUND ? round_bf16(v) : v;
    }
}
