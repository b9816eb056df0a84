// Products with weight matrices.
//
// The order, for `linear_few` and `linear_many` alike: columns come in blocks of 128, a block in two halves, a half in four matrix
// instructions of sixteen columns each, the same columns in the same places. A block's sum is multiplied by its scale and added to the
// total, in ascending order, by a fused multiply-add. Rows, lanes and who computes them do not enter, so one lane's result is the same
// alone and among two thousand.
//
// Within a half the sixteen columns of instruction s are, for thread t of four, 16 t + 4 s + {0, 2, 1, 3}: a thread then reads sixteen
// neighbouring weights at once, and unpacks four codes in seven instructions. Both factors are permuted alike, so the product is the same.

#include "common.cuh"

static DEVICE u32 which(const Linears &p, u32 block) {
    u32 d = 0;
    while (d + 1 < p.count && block >= p.list[d + 1].first_tile) d++;
    return d;
}

// Few lanes: a warp has a tile of sixteen rows and every `ways`-th block of columns, so that the warps of a block read neighbouring columns at
// the same time. Weights come through a ring in shared memory that each warp fills for itself.
constexpr u32 FEW_STAGES = 2;
// Bytes of a lane's 128 activations in shared memory: rows of neighbouring lanes lie in other banks.
constexpr u32 X_BYTES = 2 * BLOCK + 16;

// Dynamic shared memory of `linear_one`, `linear_two` and `linear_few`, with W warps in a block and B blocks of columns: for each warp its ring,
// FEW_STAGES * 16 * BLOCK weights, and X_BYTES for each lane; for each of W / ways row tiles and each block of columns sixteen sums for each lane and a
// scale. `bind.rs` has the same formula.

template <bool FP8, u32 LANES>
static DEVICE void few(const Linears &p, const Linear &l, u32 block, u8 *shared) {
    constexpr u32 WIDTH = FP8 ? 1 : 2, CHUNKS = BLOCK * WIDTH / 16, STAGE = 16 * BLOCK * WIDTH;
    u32 warp = threadIdx.x / 32, i = threadIdx.x % 32, g = i / 4, t = i % 4;
    u32 lanes = LANES == FEW ? p.lanes : LANES;
    u32 blocks = (l.k + BLOCK - 1) / BLOCK, ways = l.ways, warps = blockDim.x / 32;
    u32 tiles = (l.rows + 15) / 16, per_block = warps / ways, groups_of_tiles = (tiles + per_block - 1) / per_block;
    u32 group = block / groups_of_tiles, first = block % groups_of_tiles * per_block;
    u32 mine = warp / ways, tile = first + mine, from = warp % ways;
    u8 *ring = shared + warp * FEW_STAGES * STAGE, *x_at = shared + warps * FEW_STAGES * STAGE + warp * lanes * X_BYTES;
    float *sums = reinterpret_cast<float *>(shared + warps * (FEW_STAGES * STAGE + lanes * X_BYTES));
    float *scales = sums + per_block * blocks * 16 * lanes;

    if (tile < tiles && from < blocks) {
        // The weights of a thread: sixteen bytes of every (32 / CHUNKS)-th row. Pieces are swapped in odd rows, so that the banks differ.
        u32 piece = i % CHUNKS, row = i / CHUNKS;
        u64 bytes = static_cast<u64>(l.k) * WIDTH;
        const u8 *weight = l.weight + (static_cast<u64>(group) * l.rows + tile * 16) * bytes + piece * 16;
        u32 last = l.rows - 1 - tile * 16, to = shared_address(ring) + row * BLOCK * WIDTH, column = piece * 16 / WIDTH;
        auto fetch_weights = [&](u32 at, u32 stage) {
#pragma unroll
            for (u32 n = 0; n < CHUNKS / 2; n++) {
                u32 r = row + n * (32 / CHUNKS);
                u32 place = piece ^ (FP8 ? (r & 1) * 4 : (r & 1));
                copy_async(to + stage * STAGE + n * (32 / CHUNKS) * BLOCK * WIDTH + place * 16,
                           weight + min(r, last) * bytes + static_cast<u64>(at) * BLOCK * WIDTH, at * BLOCK + column < l.k);
            }
        };
        // What does not depend on the grid before this one is asked for before that has ended.
#pragma unroll
        for (u32 n = 0; n < FEW_STAGES; n++) {
            if (from + n * ways < blocks) fetch_weights(from + n * ways, n);
            copies_commit();
        }
        const float *scale = FP8 ? l.scale + (static_cast<u64>(group) * l.rows + tile * 16) / BLOCK * blocks : nullptr;
        for (u32 at = from + i * ways; at < blocks; at += 32 * ways)
            scales[mine * blocks + at] = FP8 ? scale[at] * E4M3_LOWERED : BF16_LOWERED;
        wait_for_previous();
        bool quantised = p.mode == FP8_MODE && (l.flags & QUANTISE);
        const float *x[LANES];
#pragma unroll
        for (u32 n = 0; n < LANES; n++) {
            u32 lane = min(n, lanes - 1);
            x[n] = l.x + static_cast<u64>(l.flags & WANTED ? p.wanted[lane] : lane) * l.x_stride + group * l.x_group + 4 * i;
        }
        // Activations of the next blocks.
        constexpr u32 SOON = LANES == 1 ? 2 : 1;
        float4 next[SOON][LANES];
        auto fetch = [&](float4 (&into)[LANES], u32 at) {
#pragma unroll
            for (u32 n = 0; n < LANES; n++)
                into[n] = n < lanes && at * BLOCK + 4 * i < l.k ? *reinterpret_cast<const float4 *>(x[n] + at * BLOCK)
                                                                : make_float4(0, 0, 0, 0);
        };
#pragma unroll
        for (u32 n = 0; n < SOON; n++) fetch(next[n], from + n * ways);
        u32 stage = 0;
        for (u32 at = from; at < blocks; at += ways) {
#pragma unroll
            for (u32 lane = 0; lane < LANES; lane++)
                if (lane < lanes) {
                    float v[4] = {next[0][lane].x, next[0][lane].y, next[0][lane].z, next[0][lane].w};
                    if (quantised) {
                        float unit = quantum(warp_max(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])))));
                        for (int j = 0; j < 4; j++) v[j] = quantise(v[j], unit);
                    }
                    *reinterpret_cast<uint2 *>(x_at + lane * X_BYTES + 8 * i) = raised_pairs(v);
                    if constexpr (SOON == 2) next[0][lane] = next[1][lane];
                }
            fetch(next[SOON - 1], at + SOON * ways);
            copies_wait<FEW_STAGES - 1>();
            __syncwarp();
            const u8 *w = ring + stage * STAGE;
            float sum[4] = {0, 0, 0, 0};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint4 v[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
                if (g < lanes) {
                    const uint4 *from_row = reinterpret_cast<const uint4 *>(x_at + g * X_BYTES + 128 * h + 32 * t);
                    v[0] = from_row[0], v[1] = from_row[1];
                }
                u32 a[4][4];
                // Rows g and g + 8 are both odd or both even.
                if constexpr (FP8) {
                    const u8 *at_row = w + g * BLOCK + ((4 * h + t) ^ ((g & 1) * 4)) * 16;
                    uint4 w0 = *reinterpret_cast<const uint4 *>(at_row), w1 = *reinterpret_cast<const uint4 *>(at_row + 8 * BLOCK);
                    e4m3_pairs(w0.x, a[0][0], a[0][2]), e4m3_pairs(w1.x, a[0][1], a[0][3]);
                    e4m3_pairs(w0.y, a[1][0], a[1][2]), e4m3_pairs(w1.y, a[1][1], a[1][3]);
                    e4m3_pairs(w0.z, a[2][0], a[2][2]), e4m3_pairs(w1.z, a[2][1], a[2][3]);
                    e4m3_pairs(w0.w, a[3][0], a[3][2]), e4m3_pairs(w1.w, a[3][1], a[3][3]);
                } else {
#pragma unroll
                    for (int q = 0; q < 2; q++) {
                        const u8 *at_row = w + g * BLOCK * 2 + ((8 * h + 2 * t + q) ^ (g & 1)) * 16;
                        uint4 w0 = *reinterpret_cast<const uint4 *>(at_row), w1 = *reinterpret_cast<const uint4 *>(at_row + 16 * BLOCK);
                        bf16_pairs(w0.x, w0.y, a[2 * q][0], a[2 * q][2]), bf16_pairs(w1.x, w1.y, a[2 * q][1], a[2 * q][3]);
                        bf16_pairs(w0.z, w0.w, a[2 * q + 1][0], a[2 * q + 1][2]), bf16_pairs(w1.z, w1.w, a[2 * q + 1][1], a[2 * q + 1][3]);
                    }
                }
#pragma unroll
                for (int s = 0; s < 4; s++)
                    mma(sum, a[s][0], a[s][1], a[s][2], a[s][3], s % 2 ? v[s / 2].z : v[s / 2].x, s % 2 ? v[s / 2].w : v[s / 2].y);
            }
            __syncwarp();
            if (at + FEW_STAGES * ways < blocks) fetch_weights(at + FEW_STAGES * ways, stage);
            copies_commit();
            stage = (stage + 1) % FEW_STAGES;
            float *out = sums + ((mine * blocks + at) * lanes + 2 * t) * 16 + g;
            if (2 * t < lanes) out[0] = sum[0], out[8] = sum[2];
            if (2 * t + 1 < lanes) out[16] = sum[1], out[24] = sum[3];
        }
    } else {
        wait_for_previous();
    }
    __syncthreads();
    for (u32 n = threadIdx.x; n < per_block * 16 * lanes; n += blockDim.x) {
        u32 which_tile = n / (16 * lanes), place = n % (16 * lanes), lane = place / 16, row = (first + which_tile) * 16 + place % 16;
        if (row < l.rows) {
            float total = 0;
#pragma unroll 8
            for (u32 at = which_tile * blocks; at < (which_tile + 1) * blocks; at++)
                total = __fmaf_rn(sums[at * 16 * lanes + place], scales[at], total);
            if (l.flags & ROUND) total = round_bf16(total);
            l.out[static_cast<u64>(lane) * l.out_stride + group * l.out_group + row] = total;
        }
    }
}

template <u32 LANES>
static DEVICE void few_of(const Linears &p) {
    extern __shared__ __align__(128) u8 shared[];
    start_next();
    const Linear &l = p.list[which(p, blockIdx.x)];
    if (l.dtype == E4M3) few<true, LANES>(p, l, blockIdx.x - l.first_tile, shared);
    else few<false, LANES>(p, l, blockIdx.x - l.first_tile, shared);
}
// One lane, two, and up to FEW: the same results, and registers for no more than needed.
extern "C" __global__ void __launch_bounds__(512, 2) linear_one(const __grid_constant__ Linears p) { few_of<1>(p); }
extern "C" __global__ void __launch_bounds__(512, 2) linear_two(const __grid_constant__ Linears p) { few_of<2>(p); }
extern "C" __global__ void __launch_bounds__(512) linear_few(const __grid_constant__ Linears p) { few_of<FEW>(p); }

// Many lanes: 128 rows by 64 lanes a block, eight warps of 32 by 32, halves of 64 columns in three stages of shared memory.
constexpr u32 MANY_ROWS = 128, MANY_LANES = 64, STAGES = 3;
constexpr u32 ROWS_BYTES = MANY_ROWS * 128, LANES_BYTES = MANY_LANES * 128, STAGE_BYTES = ROWS_BYTES + LANES_BYTES;
extern "C" __device__ const u32 linear_many_shared = STAGES * STAGE_BYTES;

// Byte of chunk `chunk` (sixteen bytes) of row `row` in a tile with rows of 128 bytes; neighbouring rows' chunks lie in other banks.
static DEVICE u32 swizzled(u32 row, u32 chunk) { return row * 128 + ((chunk ^ (row & 1)) * 16); }

template <bool FP8>
static DEVICE void many(const Linears &p, const Linear &l, u32 block, u8 *shared) {
    u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    u32 tiles = (l.rows + MANY_ROWS - 1) / MANY_ROWS, group = block / tiles, first_row = block % tiles * MANY_ROWS;
    u32 first_lane = blockIdx.y * MANY_LANES;
    u32 blocks = (l.k + BLOCK - 1) / BLOCK, halves = (l.k + 63) / 64;
    u64 width = static_cast<u64>(l.k) * (FP8 ? 1 : 2);
    const u8 *weight = l.weight + static_cast<u64>(group) * l.rows * width;
    const u16 *x = reinterpret_cast<const u16 *>(l.x) + group * l.x_group;
    u32 base = shared_address(shared);

    auto fetch = [&](u32 half) {
        u32 stage = base + half % STAGES * STAGE_BYTES, column = half * 64;
        constexpr u32 CHUNKS = FP8 ? 4 : 8;
        for (u32 i = threadIdx.x; i < MANY_ROWS * CHUNKS; i += 256) {
            u32 row = i / CHUNKS, chunk = i % CHUNKS, c = column + chunk * (FP8 ? 16 : 8);
            u32 real_row = min(first_row + row, l.rows - 1);
            u32 to = FP8 ? row * 64 + chunk * 16 : swizzled(row, chunk);
            bool real = c < l.k;
            copy_async(stage + to, weight + real_row * width + (real ? c : 0) * (FP8 ? 1 : 2), real);
        }
        for (u32 i = threadIdx.x; i < MANY_LANES * 8; i += 256) {
            u32 row = i / 8, chunk = i % 8, c = column + chunk * 8, lane = first_lane + row;
            bool real = lane < p.lanes && c < l.k;
            copy_async(stage + ROWS_BYTES + swizzled(row, chunk), x + (real ? static_cast<u64>(lane) * l.x_stride + c : 0), real);
        }
    };

    float sum[2][4][4] = {}, total[2][4][4] = {};
    u32 my_rows = warp / 2 * 32, my_lanes = warp % 2 * 32;
    for (u32 s = 0; s + 1 < STAGES; s++) {
        if (s < halves) fetch(s);
        copies_commit();
    }
    for (u32 half = 0; half < halves; half++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        if (half + STAGES - 1 < halves) fetch(half + STAGES - 1);
        copies_commit();
        const u8 *rows_at = shared + half % STAGES * STAGE_BYTES, *lanes_at = rows_at + ROWS_BYTES;
#pragma unroll
        for (int q = 0; q < 2; q++) {
            // Instructions 2 q and 2 q + 1 of this half.
            u32 b[4][4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint4 v = *reinterpret_cast<const uint4 *>(lanes_at + swizzled(my_lanes + n * 8 + g, 2 * t + q));
                b[n][0] = v.x, b[n][1] = v.y, b[n][2] = v.z, b[n][3] = v.w;
            }
#pragma unroll
            for (int m = 0; m < 2; m++) {
                u32 row0 = my_rows + m * 16 + g, row1 = row0 + 8;
                u32 a[2][4];
                if constexpr (FP8) {
                    uint2 w0 = *reinterpret_cast<const uint2 *>(rows_at + row0 * 64 + t * 16 + q * 8);
                    uint2 w1 = *reinterpret_cast<const uint2 *>(rows_at + row1 * 64 + t * 16 + q * 8);
                    e4m3_pairs(w0.x, a[0][0], a[0][2]), e4m3_pairs(w1.x, a[0][1], a[0][3]);
                    e4m3_pairs(w0.y, a[1][0], a[1][2]), e4m3_pairs(w1.y, a[1][1], a[1][3]);
                } else {
                    uint4 w0 = *reinterpret_cast<const uint4 *>(rows_at + swizzled(row0, 2 * t + q));
                    uint4 w1 = *reinterpret_cast<const uint4 *>(rows_at + swizzled(row1, 2 * t + q));
                    bf16_pairs(w0.x, w0.y, a[0][0], a[0][2]), bf16_pairs(w1.x, w1.y, a[0][1], a[0][3]);
                    bf16_pairs(w0.z, w0.w, a[1][0], a[1][2]), bf16_pairs(w1.z, w1.w, a[1][1], a[1][3]);
                }
#pragma unroll
                for (int s = 0; s < 2; s++)
#pragma unroll
                    for (int n = 0; n < 4; n++) mma(sum[m][n], a[s][0], a[s][1], a[s][2], a[s][3], b[n][2 * s], b[n][2 * s + 1]);
            }
        }
        if (half % 2 == 1 || half + 1 == halves) {
            u32 at = half / 2;
#pragma unroll
            for (int m = 0; m < 2; m++) {
                u64 row = static_cast<u64>(group) * l.rows + min(first_row + my_rows + m * 16, l.rows - 1);
                float factor = FP8 ? l.scale[row / BLOCK * blocks + at] * E4M3_LOWERED : BF16_LOWERED;
#pragma unroll
                for (int n = 0; n < 4; n++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        total[m][n][j] = __fmaf_rn(sum[m][n][j], factor, total[m][n][j]);
                        sum[m][n][j] = 0;
                    }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 row = first_row + my_rows + m * 16 + g + (j / 2) * 8, lane = first_lane + my_lanes + n * 8 + 2 * t + j % 2;
                float value = total[m][n][j];
                if (row < l.rows && lane < p.lanes)
                    l.out[static_cast<u64>(lane) * l.out_stride + group * l.out_group + row] =
                        l.flags & ROUND ? round_bf16(value) : value;
            }
}

extern "C" __global__ void __launch_bounds__(256, 2) linear_many(const __grid_constant__ Linears p) {
    extern __shared__ __align__(128) u8 shared[];
    start_next();
    wait_for_previous();
    const Linear &l = p.list[which(p, blockIdx.x)];
    if (l.dtype == E4M3) many<true>(p, l, blockIdx.x - l.first_tile, shared);
    else many<false>(p, l, blockIdx.x - l.first_tile, shared);
}

// What `linear_many` multiplies: rows of raised pairs, quantised first where wanted. The width is a multiple of four.
struct Pack {
    const float *x;
    u16 *out;
    u32 x_stride, out_stride, width, lanes, quantise, _pad;
    const u32 *wanted;
};
extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ Pack p) {
    start_next();
    wait_for_previous();
    u32 lane = blockIdx.y, from = p.wanted ? p.wanted[lane] : lane;
    u32 column = blockIdx.x * 1024 + threadIdx.x * 4;
    const float *x = p.x + static_cast<u64>(from) * p.x_stride;
    float v[4], largest = 0;
    for (int i = 0; i < 4; i++) {
        v[i] = column + i < p.width ? x[column + i] : 0.0f;
        largest = fmaxf(largest, fabsf(v[i]));
    }
    if (p.quantise) {
        float scale = quantum(warp_max(largest));
        for (int i = 0; i < 4; i++) v[i] = quantise(v[i], scale);
    }
    if (column < p.width)
        *reinterpret_cast<uint2 *>(p.out + static_cast<u64>(lane) * p.out_stride + column) = raised_pairs(v);
}

// f32 between operations, and shapes or types that the matrix instructions do not take. A row's blocks of 128 columns are shared by `splits`
// warps, whose sums are added in ascending order; within a block thread i takes columns 4 i .. 4 i + 4.
static DEVICE float weight_at(const Linear &l, u64 row, u32 column) {
    u64 at = row * l.k + column;
    if (l.dtype == F32) return reinterpret_cast<const float *>(l.weight)[at];
    if (l.dtype == BF16) return as_float(static_cast<u32>(reinterpret_cast<const u16 *>(l.weight)[at]) << 16);
    return e4m3_value(l.weight[at]);
}

// Four neighbouring weights.
template <u32 DTYPE>
static DEVICE void four_weights(const Linear &l, u64 place, float (&w)[4]) {
    if constexpr (DTYPE == F32) {
        float4 v = *reinterpret_cast<const float4 *>(reinterpret_cast<const float *>(l.weight) + place);
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else if constexpr (DTYPE == BF16) {
        uint2 v = *reinterpret_cast<const uint2 *>(l.weight + 2 * place);
        w[0] = bf16_low(v.x), w[1] = bf16_high(v.x), w[2] = bf16_low(v.y), w[3] = bf16_high(v.y);
    } else {
        u32 codes = *reinterpret_cast<const u32 *>(l.weight + place);
        for (u32 j = 0; j < 4; j++) w[j] = e4m3_value(codes >> 8 * j & 255);
    }
}

// What a thread adds up of the blocks `from` .. `to` of ROWS rows from `row` on. ANY: any type and alignment, value by value; else DTYPE, four at a time.
template <bool ANY, u32 DTYPE, u32 LANES, u32 ROWS_AT_ONCE>
static DEVICE void plain_sums(const Linear &l, u64 row, u64 last, const float *(&x)[LANES], u32 lanes, u32 from, u32 to,
                              float (&total)[ROWS_AT_ONCE][LANES]) {
    constexpr int AHEAD = ANY || LANES > 1 ? 1 : 4;
    u32 blocks = (l.k + BLOCK - 1) / BLOCK;
#pragma unroll AHEAD
    for (u32 at = from; at < to; at++) {
        u32 column = at * BLOCK + threadIdx.x % 32 * 4;
        float w[ROWS_AT_ONCE][4] = {}, scale[ROWS_AT_ONCE];
#pragma unroll
        for (u32 r = 0; r < ROWS_AT_ONCE; r++) {
            u64 real = min(row + r, last);
            scale[r] = l.dtype == E4M3 ? l.scale[real / BLOCK * blocks + at] : 1.0f;
            if constexpr (ANY) {
#pragma unroll 1
                for (u32 j = 0; j < 4 && column + j < l.k; j++) w[r][j] = weight_at(l, real, column + j);
            } else if (column < l.k) {
                four_weights<DTYPE>(l, real * l.k + column, w[r]);
            }
        }
#pragma unroll
        for (u32 t = 0; t < LANES; t++)
            if (LANES == 1 || t < lanes) {
                float v[4] = {0, 0, 0, 0};
                if constexpr (ANY) {
#pragma unroll 1
                    for (u32 j = 0; j < 4 && column + j < l.k; j++) v[j] = x[t][column + j];
                } else if (column < l.k) {
                    float4 four = *reinterpret_cast<const float4 *>(x[t] + column);
                    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
                }
#pragma unroll
                for (u32 r = 0; r < ROWS_AT_ONCE; r++) {
                    float sum = 0;
#pragma unroll
                    for (u32 j = 0; j < 4; j++) sum = __fmaf_rn(w[r][j], v[j], sum);
                    total[r][t] = __fmaf_rn(sum, scale[r], total[r][t]);
                }
            }
    }
}

// Rows that a warp of `linear_plain` has where lanes are many, so that activations are read less often.
constexpr u32 PLAIN_ROWS = 4;

template <u32 LANES, u32 ROWS_AT_ONCE>
static DEVICE void plain(const Linears &p, const Linear &l, float (*part)[FEW]) {
    u32 warp = threadIdx.x / 32, i = threadIdx.x % 32, block = blockIdx.x - l.first_tile, first_lane = blockIdx.y * FEW;
    u32 blocks = (l.k + BLOCK - 1) / BLOCK, ways = splits(blocks), each = (blocks + ways - 1) / ways;
    u32 per_block = 8 / ways * ROWS_AT_ONCE, rows_of_blocks = (l.rows + per_block - 1) / per_block;
    u32 group = block / rows_of_blocks, first = block % rows_of_blocks * per_block, row = first + warp / ways * ROWS_AT_ONCE;
    u32 from = warp % ways * each, to = min(from + each, blocks), lanes = LANES == 1 ? 1 : min(p.lanes - first_lane, FEW);
    u64 start = static_cast<u64>(group) * l.rows, last = start + l.rows - 1;
    float total[ROWS_AT_ONCE][LANES] = {};
    const float *x[LANES];
#pragma unroll
    for (u32 t = 0; t < LANES; t++) {
        u32 lane = first_lane + min(t, lanes - 1);
        x[t] = l.x + static_cast<u64>(l.flags & WANTED ? p.wanted[lane] : lane) * l.x_stride + group * l.x_group;
    }
    bool fours = l.k % 4 == 0 && (l.x_stride | l.x_group) % 4 == 0 && reinterpret_cast<u64>(l.x) % 16 == 0;
    if (row < l.rows) {
        if (fours && l.dtype == F32) plain_sums<false, F32>(l, start + row, last, x, lanes, from, to, total);
        else if (fours && l.dtype == BF16) plain_sums<false, BF16>(l, start + row, last, x, lanes, from, to, total);
        else if (fours) plain_sums<false, E4M3>(l, start + row, last, x, lanes, from, to, total);
        else plain_sums<true, F32>(l, start + row, last, x, lanes, from, to, total);
    }
#pragma unroll
    for (u32 r = 0; r < ROWS_AT_ONCE; r++)
#pragma unroll
        for (u32 t = 0; t < LANES; t++)
            if (LANES == 1 || t < lanes) {
                float sum = warp_sum(total[r][t]);
                if (i == 0) part[warp * ROWS_AT_ONCE + r][t] = sum;
            }
    __syncthreads();
    if (threadIdx.x < per_block * FEW) {
        u32 which_row = threadIdx.x / FEW, t = threadIdx.x % FEW, used = (blocks + each - 1) / each;
        if (t < lanes && first + which_row < l.rows) {
            // Of the warps that share these rows, one after the other.
            u32 place = which_row / ROWS_AT_ONCE * ways * ROWS_AT_ONCE + which_row % ROWS_AT_ONCE;
            float sum = part[place][t];
            for (u32 s = 1; s < used; s++) sum = __fadd_rn(sum, part[place + s * ROWS_AT_ONCE][t]);
            if (l.flags & ROUND) sum = round_bf16(sum);
            l.out[static_cast<u64>(first_lane + t) * l.out_stride + group * l.out_group + first + which_row] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) linear_plain(const __grid_constant__ Linears p) {
    __shared__ float part[8 * PLAIN_ROWS][FEW];
    start_next();
    const Linear &l = p.list[which(p, blockIdx.x)];
    wait_for_previous();
    if (p.lanes == 1) plain<1, 1>(p, l, part);
    else if (p.lanes <= FEW) plain<FEW, 1>(p, l, part);
    else plain<FEW, PLAIN_ROWS>(p, l, part);
}
