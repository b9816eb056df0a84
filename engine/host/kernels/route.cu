// The router's choice, and the hand-over of a step to the host's ports.

#include "common.cuh"

constexpr u32 MAX_EXPERTS = 1024, MAX_GROUPS = 64, MAX_CHOSEN = 64;

// Sigmoid scores; the choice, of groups by their two largest together and then of experts, is by score + bias, the weights are scores
// without it. Of equals the lower id wins; ids come out ascending.
extern "C" __global__ void __launch_bounds__(256) route(const __grid_constant__ Route p) {
    __shared__ float score[MAX_EXPERTS], group_score[MAX_GROUPS];
    __shared__ __align__(16) float biased[MAX_EXPERTS];
    __shared__ u8 open[MAX_GROUPS], taken[MAX_EXPERTS];
    __shared__ float weight[MAX_CHOSEN];
    __shared__ u32 expert[MAX_CHOSEN];
    start_next();
    wait_for_previous();
    u32 t = blockIdx.x, size = p.experts / p.groups;
    const float *logits = p.logits + static_cast<u64>(t) * p.experts;
    for (u32 e = threadIdx.x; e < p.experts; e += 256) {
        score[e] = 1.0f / (1.0f + expf(-logits[e]));
        biased[e] = __fadd_rn(score[e], p.bias[e]);
    }
    __syncthreads();
    // A warp a group: the two largest.
    for (u32 g = threadIdx.x / 32; g < p.groups; g += 8) {
        float first = -INFINITY, second = -INFINITY;
        for (u32 e = g * size + threadIdx.x % 32; e < (g + 1) * size; e += 32) {
            float c = biased[e];
            if (c > first) second = first, first = c;
            else second = fmaxf(second, c);
        }
        for (int step = 16; step; step >>= 1) {
            float f = __shfl_xor_sync(~0u, first, step), o = __shfl_xor_sync(~0u, second, step);
            second = fmaxf(fminf(first, f), fmaxf(second, o));
            first = fmaxf(first, f);
        }
        if (threadIdx.x % 32 == 0) group_score[g] = size > 1 ? __fadd_rn(first, second) : first;
    }
    __syncthreads();
    for (u32 g = threadIdx.x; g < p.groups; g += 256) {
        u32 better = 0;
        for (u32 o = 0; o < p.groups; o++) better += group_score[o] > group_score[g] || (group_score[o] == group_score[g] && o < g);
        open[g] = better < p.kept_groups;
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < p.experts; e += 256)
        if (!open[e / size]) biased[e] = -INFINITY;
    __syncthreads();
    for (u32 e = threadIdx.x; e < p.experts; e += 256) {
        u32 better = 0;
        float c = biased[e];
        if (open[e / size]) {
            // Four at a time; a closed group's are never better than an open one's.
            for (u32 o = 0; o + 4 <= p.experts; o += 4) {
                float4 v = *reinterpret_cast<const float4 *>(biased + o);
                better += (v.x > c || (v.x == c && o < e)) + (v.y > c || (v.y == c && o + 1 < e)) + (v.z > c || (v.z == c && o + 2 < e)) +
                          (v.w > c || (v.w == c && o + 3 < e));
            }
            for (u32 o = p.experts / 4 * 4; o < p.experts; o++) better += biased[o] > c || (biased[o] == c && o < e);
        }
        taken[e] = open[e / size] && better < p.chosen;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        // Ascending ids: the first warp counts them through.
        u32 i = threadIdx.x, n = 0;
        for (u32 base = 0; base < p.experts; base += 32) {
            bool mine = base + i < p.experts && taken[base + i];
            u32 all = __ballot_sync(~0u, mine), place = n + __popc(all & ((1u << i) - 1));
            if (mine && place < p.chosen) expert[place] = base + i, weight[place] = score[base + i];
            n += __popc(all);
        }
        __syncwarp();
        n = min(n, p.chosen);
        float sum = 0;
        for (u32 j = 0; j < n; j++) sum = __fadd_rn(sum, weight[j]);
        float divisor = p.normalise ? __fadd_rn(sum, 1e-20f) : 1.0f;
        __syncwarp();
        for (u32 j = i; j < p.chosen; j += 32) weight[j] = j < n ? weight[j] / divisor * p.scale : 0.0f, expert[j] = j < n ? expert[j] : 0;
    }
    __syncthreads();
    const Exchange *e = p.exchange;
    bool travels = e && e->bound;
    for (u32 i = threadIdx.x; i < p.chosen; i += 256) {
        u32 at = t * p.chosen + i;
        p.expert_out[at] = expert[i], p.weight_out[at] = weight[i];
        if (travels) e->experts[at] = expert[i], e->weights[at] = weight[i];
    }
    if (!e) return;
    if (travels) {
        const float *input = p.input + static_cast<u64>(t) * p.input_stride;
        for (u32 i = threadIdx.x; i < p.hidden; i += 256) e->hidden[static_cast<u64>(t) * p.hidden + i] = input[i];
    }
    if (travels) __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        // The last block counts the step and says that it is whole.
        if (atomicAdd(e->arrived, 1) + 1 == gridDim.x) {
            *e->arrived = 0;
            u32 step = *e->step + 1;
            *reinterpret_cast<volatile u32 *>(e->step) = step;
            if (travels && e->times) e->times[step % TIMES * 2] = nanoseconds();
            if (travels) __threadfence_system();
            if (travels) asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(e->handed), "r"(step) : "memory");
        }
    }
}

// The largest logit of each lane; the lowest id of equals, or nothing where one is not finite.
extern "C" __global__ void __launch_bounds__(1024) argmax(const float *logits, u32 vocab, u32 *out) {
    __shared__ float best[32];
    __shared__ u32 where[32];
    __shared__ u32 broken;
    start_next();
    wait_for_previous();
    const float *row = logits + static_cast<u64>(blockIdx.x) * vocab;
    if (threadIdx.x == 0) broken = 0;
    __syncthreads();
    float value = -INFINITY;
    u32 at = ~0u;
    for (u32 i = threadIdx.x; i < vocab; i += 1024) {
        float v = row[i];
        if (!isfinite(v)) broken = 1;
        if (v > value || at == ~0u) value = v, at = i;
    }
    for (int step = 16; step; step >>= 1) {
        float v = __shfl_xor_sync(~0u, value, step);
        u32 w = __shfl_xor_sync(~0u, at, step);
        if (v > value || (v == value && w < at)) value = v, at = w;
    }
    if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = value, where[threadIdx.x / 32] = at;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 i = 1; i < 32; i++)
            if (best[i] > value || (best[i] == value && where[i] < at)) value = best[i], at = where[i];
        out[blockIdx.x] = broken ? ~0u : at;
    }
}
