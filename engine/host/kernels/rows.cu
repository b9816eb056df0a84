// Operations on one lane's row: norms, rotations, caches, gates, and the sum that comes from the ducks. A block runs a chain of them for one
// lane, so that what follows from each other costs one launch.

#include "common.cuh"

constexpr u32 THREADS = 512;

struct Scratch {
    double wide[33];
    float narrow[33];
    float2 angles[256];
    float row[THREADS];
    LaneSums sums;
};

static DEVICE float rounded(const Row &r, float value) { return r.flags & ROUND ? round_bf16(value) : value; }

// Up to sixteen values of a row for each thread, four neighbouring ones at a time, so that a row of 8192 is read at one go; longer rows go around.
constexpr u32 AT_ONCE = 4;
struct Piece {
    float4 v[AT_ONCE];

    DEVICE void load(const float *at, u32 base, u32 n) {
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++) {
            u32 c = base + 4 * (threadIdx.x + j * THREADS);
            if (n % 4 == 0 && reinterpret_cast<u64>(at) % 16 == 0) {
                v[j] = c < n ? *reinterpret_cast<const float4 *>(at + c) : make_float4(0, 0, 0, 0);
            } else {
                v[j].x = c < n ? at[c] : 0, v[j].y = c + 1 < n ? at[c + 1] : 0;
                v[j].z = c + 2 < n ? at[c + 2] : 0, v[j].w = c + 3 < n ? at[c + 3] : 0;
            }
        }
    }
    DEVICE void store(float *at, u32 base, u32 n) const {
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++) {
            u32 c = base + 4 * (threadIdx.x + j * THREADS);
            if (n % 4 == 0 && reinterpret_cast<u64>(at) % 16 == 0) {
                if (c < n) *reinterpret_cast<float4 *>(at + c) = v[j];
            } else {
                if (c < n) at[c] = v[j].x;
                if (c + 1 < n) at[c + 1] = v[j].y;
                if (c + 2 < n) at[c + 2] = v[j].z;
                if (c + 3 < n) at[c + 3] = v[j].w;
            }
        }
    }
    template <class F>
    DEVICE void each(F f) {
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++) v[j].x = f(v[j].x), v[j].y = f(v[j].y), v[j].z = f(v[j].z), v[j].w = f(v[j].w);
    }
    template <class F>
    DEVICE void with(const Piece &o, F f) {
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++)
            v[j].x = f(v[j].x, o.v[j].x), v[j].y = f(v[j].y, o.v[j].y), v[j].z = f(v[j].z, o.v[j].z), v[j].w = f(v[j].w, o.v[j].w);
    }
    DEVICE void squares(float &sum) const {
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++)
            sum = __fmaf_rn(v[j].x, v[j].x, sum), sum = __fmaf_rn(v[j].y, v[j].y, sum), sum = __fmaf_rn(v[j].z, v[j].z, sum),
            sum = __fmaf_rn(v[j].w, v[j].w, sum);
    }
};
constexpr u32 PIECE = AT_ONCE * 4 * THREADS;

// out = x / sqrt(mean(x^2) + eps) * w; with `add`, x becomes x + add first, and is rounded after the norm has seen it unrounded.
static DEVICE void rms_norm(const Row &r, float *x, const float *add, float *out, Scratch &s) {
    float sum = 0;
    Piece first, weight;
    weight.load(r.w, 0, r.n);
    for (u32 base = 0; base < r.n; base += PIECE) {
        Piece piece, more;
        piece.load(x, base, r.n);
        if (add) {
            more.load(add, base, r.n);
            piece.with(more, [](float a, float b) { return __fadd_rn(a, b); });
        }
        piece.squares(sum);
        if (base == 0) first = piece;
        else if (add) piece.store(x, base, r.n);
    }
    float root = 1.0f / sqrtf(block_sum(sum, s.narrow) / static_cast<float>(r.n) + r.eps);
    for (u32 base = 0; base < r.n; base += PIECE) {
        Piece piece;
        if (base == 0) piece = first;
        else piece.load(x, base, r.n), weight.load(r.w, base, r.n);
        Piece normed = piece;
        normed.with(weight, [&](float a, float b) { return rounded(r, a * root * b); });
        normed.store(out, base, r.n);
        if (add) {
            piece.each([&](float a) { return rounded(r, a); });
            piece.store(x, base, r.n);
        }
    }
}

static DEVICE void layer_norm(const Row &r, const float *x, float *out, Scratch &s) {
    double sum = 0, squares = 0;
    for (u32 i = threadIdx.x; i < r.n; i += THREADS) sum += x[i];
    double mean = block_sum(sum, s.wide) / r.n;
    for (u32 i = threadIdx.x; i < r.n; i += THREADS) squares += (x[i] - mean) * (x[i] - mean);
    double root = 1.0 / sqrt(block_sum(squares, s.wide) / r.n + static_cast<double>(r.eps));
    for (u32 i = threadIdx.x; i < r.n; i += THREADS)
        out[i] = rounded(r, static_cast<float>((x[i] - mean) * root) * r.w[i] + r.v[i]);
}

// The angle is an f32 product, as the reference has it; its sine and cosine are exact to f32.
static DEVICE void rotate(const Row &r, float *y, u32 position, Scratch &s) {
    for (u32 i = threadIdx.x; i < r.pairs; i += THREADS) {
        double sine, cosine;
        sincos(static_cast<double>(__fmul_rn(static_cast<float>(position), r.w[i])), &sine, &cosine);
        s.angles[i] = make_float2(static_cast<float>(cosine), static_cast<float>(sine));
    }
    __syncthreads();
    // Eight pairs of a thread are read before the first is written.
    constexpr u32 PAIRS = 8;
    u32 all = r.m * r.pairs;
    for (u32 base = threadIdx.x; base < all; base += PAIRS * THREADS) {
        float a[PAIRS], b[PAIRS];
        float *first[PAIRS], *second[PAIRS];
#pragma unroll
        for (u32 j = 0; j < PAIRS; j++) {
            u32 i = min(base + j * THREADS, all - 1), head = i / r.pairs, pair = i % r.pairs;
            float *part = y + static_cast<u64>(head) * r.n + r.offset;
            first[j] = part + (r.layout ? pair : 2 * pair), second[j] = part + (r.layout ? pair + r.pairs : 2 * pair + 1);
            a[j] = *first[j], b[j] = *second[j];
        }
#pragma unroll
        for (u32 j = 0; j < PAIRS; j++) {
            u32 i = base + j * THREADS;
            if (i >= all) break;
            float2 angle = s.angles[i % r.pairs];
            *first[j] = rounded(r, __fsub_rn(__fmul_rn(a[j], angle.x), __fmul_rn(b[j], angle.y)));
            *second[j] = rounded(r, __fadd_rn(__fmul_rn(b[j], angle.x), __fmul_rn(a[j], angle.y)));
        }
    }
}

static DEVICE void append(const Row &r, const Rows &p, const Lane &lane, const float *x) {
    u64 at = cache_row(r.cache, p.pages, p.pages_stride, lane.sequence, lane.position);
    for (u32 i = threadIdx.x; i < r.n; i += THREADS) {
        if (p.mode == EXACT) reinterpret_cast<float *>(r.cache.pool)[at + i] = x[i];
        else reinterpret_cast<u16 *>(r.cache.pool)[at + i] = static_cast<u16>(bf16_bits(x[i]));
    }
}

static DEVICE void embed(const Row &r, u32 token, float *out) {
    u64 start = static_cast<u64>(token) * r.n;
    for (u32 i = threadIdx.x; i < r.n; i += THREADS) {
        float v;
        if (r.dtype == F32) v = reinterpret_cast<const float *>(r.a)[start + i];
        else if (r.dtype == BF16) v = as_float(static_cast<u32>(reinterpret_cast<const u16 *>(r.a)[start + i]) << 16);
        else v = e4m3_value(r.a[start + i]) * r.v[static_cast<u64>(token / BLOCK) * ((r.n + BLOCK - 1) / BLOCK) + i / BLOCK];
        out[i] = rounded(r, v);
    }
}

// Until the sums of the step under way are there, somebody gives up, or too long.
static DEVICE void wait_for_sums(const Exchange &e) {
    if (threadIdx.x == 0 && e.bound) {
        u32 step = *reinterpret_cast<volatile u32 *>(e.step), seen, gone;
        u64 start = nanoseconds();
        for (;;) {
            asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(seen) : "l"(e.ready) : "memory");
            if (seen == step) break;
            asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(gone) : "l"(e.abort) : "memory");
            if (gone || nanoseconds() - start > e.bound) {
                *reinterpret_cast<volatile u32 *>(e.failed) = step;
                __threadfence_system();
                break;
            }
        }
        if (e.times && blockIdx.y == 0) e.times[step % TIMES * 2 + 1] = nanoseconds();
    }
    __syncthreads();
}

static DEVICE float from_host(const float *at) {
    float v;
    asm volatile("ld.relaxed.sys.f32 %0, [%1];" : "=f"(v) : "l"(at) : "memory");
    return v;
}

// The top of the canonical tree over the nodes that are present, then the shared part.
static DEVICE void combine(const Row &r, const Exchange &e, u32 lane, const float *x, float *out, Scratch &s) {
    if (!e.bound) {
        for (u32 i = threadIdx.x; i < r.n; i += THREADS) out[i] = rounded(r, x[i]);
        return;
    }
    // Over the bus once, not for each element.
    static_assert(sizeof(LaneSums) % 4 == 0, "copied by words");
    const volatile u32 *from = reinterpret_cast<const volatile u32 *>(e.sums + lane);
    for (u32 i = threadIdx.x; i < sizeof(LaneSums) / 4; i += THREADS) reinterpret_cast<u32 *>(&s.sums)[i] = from[i];
    __syncthreads();
    const LaneSums &sums = s.sums;
    for (u32 i = threadIdx.x; i < r.n; i += THREADS) {
        float value = 0;
        if (sums.count == 1) {
            value = from_host(sums.row[0] + i);
        } else if (sums.count > 1) {
            float v[NODES];
            for (u32 node = 0; node < sums.count; node++) v[node] = from_host(sums.row[node] + i);
            for (u32 a = 0; a < sums.additions; a++) v[sums.to[a]] = __fadd_rn(v[sums.to[a]], v[sums.from[a]]);
            value = v[sums.result];
        }
        out[i] = rounded(r, sums.count ? __fadd_rn(value, x[i]) : x[i]);
    }
}

// The Walsh-Hadamard transform of each head, in Sylvester's order, times n^-1/2.
static DEVICE void hadamard(const Row &r, float *y, Scratch &s) {
    u32 at_once = THREADS / r.n, mine = threadIdx.x / r.n, i = threadIdx.x % r.n;
    for (u32 head = 0; head < r.m; head += at_once) {
        bool real = mine < at_once && head + mine < r.m;
        float *row = y + static_cast<u64>(head + mine) * r.n;
        float v = real ? row[i] : 0.0f;
        for (u32 step = 1; step < r.n; step *= 2) {
            s.row[threadIdx.x] = v;
            __syncthreads();
            float other = s.row[threadIdx.x ^ step];
            v = i & step ? other - v : v + other;
            __syncthreads();
        }
        if (real) row[i] = rounded(r, v * (1.0f / sqrtf(static_cast<float>(r.n))));
    }
}

static DEVICE void quantise_row(const Row &r, const float *y, float *out) {
    u32 warp = threadIdx.x / 32, i = threadIdx.x % 32 * 4;
    for (u32 block = warp; block * r.m < r.n; block += THREADS / 32) {
        u32 at = block * r.m + i, end = min((block + 1) * r.m, r.n);
        float v[4], largest = 0;
        for (u32 j = 0; j < 4; j++) {
            v[j] = at + j < end ? y[at + j] : 0.0f;
            largest = fmaxf(largest, fabsf(v[j]));
        }
        float scale = quantum(warp_max(largest));
        for (u32 j = 0; j < 4; j++)
            if (at + j < end) out[at + j] = quantise(v[j], scale);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) rows(const __grid_constant__ Rows p) {
    __shared__ Scratch s;
    start_next();
    wait_for_previous();
    u32 t = blockIdx.y;
    Lane lane = p.lane[t];
    for (u32 i = p.first[blockIdx.x]; i < p.first[blockIdx.x + 1]; i++) {
        const Row &r = p.list[i];
        const float *x = r.x + static_cast<u64>(t) * r.x_stride;
        float *y = r.y + static_cast<u64>(t) * r.y_stride;
        float *out = r.out + static_cast<u64>(t) * r.out_stride;
        // Kept states: [sequences, m, n].
        u64 kept = (static_cast<u64>(lane.sequence) * r.m + lane.kept) * r.n;
        switch (r.kind) {
            case EMBED: embed(r, lane.token, out); break;
            case RECALL:
                for (u32 c = threadIdx.x; c < r.n; c += THREADS) out[c] = reinterpret_cast<const float *>(r.a)[kept + c];
                break;
            case KEEP:
                for (u32 c = threadIdx.x; c < r.n; c += THREADS)
                    reinterpret_cast<float *>(const_cast<u8 *>(r.a))[kept + c] = x[c];
                break;
            case RMS_NORM: rms_norm(r, const_cast<float *>(x), nullptr, out, s); break;
            case ADD_RMS_NORM: rms_norm(r, y, x, out, s); break;
            case LAYER_NORM: layer_norm(r, x, out, s); break;
            case ROTATE: rotate(r, y, lane.position, s); break;
            case APPEND: append(r, p, lane, x); break;
            case GATED:
                for (u32 c = threadIdx.x; c < r.n; c += THREADS) out[c] = rounded(r, x[c] / (1.0f + expf(-x[c])) * y[c]);
                break;
            case COMBINE: combine(r, *p.exchange, t, x, out, s); break;
            case WAIT: wait_for_sums(*p.exchange); break;
            case HADAMARD: hadamard(r, y, s); break;
            case QUANTISE_ROW: quantise_row(r, y, r.out ? out : y); break;
        }
        // The next operation of the chain reads what other threads of this block wrote.
        __syncthreads();
    }
}
