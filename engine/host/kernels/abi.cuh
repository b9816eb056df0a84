// What the host and the kernels agree on. `engine/host/src/cuda/abi.rs` has the same structures; a test compares their sizes.
// All pointers are device addresses unless the comment says pinned. Widths and strides count elements.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// How a matrix is stored.
enum { E4M3 = 0, BF16 = 1, F32 = 2 };
// The numeric mode.
enum { EXACT = 0, BF16_MODE = 1, FP8_MODE = 2 };

// Positions of one page of the caches.
constexpr u32 PAGE = 64;
// Columns that share a block scale.
constexpr u32 BLOCK = 128;
// Lanes up to which `linear_few` serves.
constexpr u32 FEW = 8;
// Keys of one part of an attention, and the longest selection.
constexpr u32 KEYS = 64;

// One token position in flight. The table of them lies in device memory, so that a graph can be replayed for other positions.
struct Lane {
    u32 token;
    u32 position;
    u32 sequence;  // row of the page table
    u32 kept;      // row of the sequence's kept states that belongs to `position` (position modulo their number)
};

// One per-sequence cache: `pool` is [pages, PAGE, width], f32 in mode exact, else bf16.
struct Cache {
    u8 *pool;
    u32 width;
    u32 _pad;
};

// out[t][g * out_group + r] = sum over k of x[t][g * x_group + k] * w[g * rows + r][k], for groups g, rows r, lanes t.
// Weights are compact: [groups * rows, k]. Block scales (E4M3 only): [ceil(groups * rows / 128), ceil(k / 128)].
// Grouped e4m3 matrices have rows and k in multiples of 128.
struct Linear {
    const u8 *weight;
    const float *scale;
    const float *x;
    float *out;
    u32 rows, k, groups, dtype;
    u32 x_stride, x_group, out_stride, out_group;
    u32 first_tile;  // blocks of the launch before this one's
    u32 flags;
    u32 ways;        // warps that share a row's columns, a power of two; `linear_few` and its kin only, whose results do not depend on it
    u32 _pad;
};
enum {
    ROUND = 1,     // the result is rounded to bf16 (never in mode exact)
    QUANTISE = 2,  // mode fp8: activations are quantised, one scale for each 128 columns
    WANTED = 4,    // lanes are those of the list `wanted`; out's row i belongs to wanted[i]
};
constexpr u32 LINEARS = 8;
// One launch: up to LINEARS products of the same kernel.
struct Linears {
    Linear list[LINEARS];
    u32 count;
    u32 lanes;          // T, or the number of wanted lanes
    const u32 *wanted;  // null, or the lanes
    u32 mode;
    u32 _pad;
};

// Operations on a lane's row, run one after another by one block for each lane.
enum {
    EMBED = 0,         // out = row `lane.token` of a (dtype b_kind, scale c) [., n]
    RECALL = 1,        // out = kept state of the lane: a is [sequences, m, n] f32
    KEEP = 2,          // the other way: x -> a
    RMS_NORM = 3,      // out = x / sqrt(mean(x^2) + eps) * w
    ADD_RMS_NORM = 4,  // y += x (f32); out = RmsNorm(y); y rounded
    LAYER_NORM = 5,    // out = (x - mean) / sqrt(var + eps) * w + v
    ROTATE = 6,        // y in place: heads m, stride n, offset, pairs, layout; frequencies w
    APPEND = 7,        // x (n wide) -> cache at the lane's position
    GATED = 8,         // out = silu(x) * y
    COMBINE = 9,       // out = (sums of the exchange up the tree) + x
    WAIT = 10,         // waits for the exchange's ready word; always first
    HADAMARD = 11,     // y in place: heads m of width n (a power of two), times n^-1/2; rounded
    QUANTISE_ROW = 12, // out = y through e4m3 with one scale for each m columns (at most BLOCK) and back to f32; in place where out is null
};
struct Row {
    u32 kind;
    u32 n, m, offset;
    u32 pairs, layout;  // layout 0: (2i, 2i + 1); 1: (i, i + pairs)
    u32 dtype, flags;   // ROUND
    float eps;
    u32 x_stride, y_stride, out_stride;
    const float *x;
    float *y;
    float *out;
    const u8 *a;
    const float *w;
    const float *v;
    Cache cache;
};
constexpr u32 ROWS = 16;
struct Exchange;
// One launch: chains of row operations; block (chain, lane) runs rows first[chain] .. first[chain + 1].
struct Rows {
    Row list[ROWS];
    u32 first[ROWS + 1];
    u32 chains;
    u32 lanes;
    u32 mode;
    const Lane *lane;
    const u32 *pages;  // [sequences, pages of a sequence]
    u32 pages_stride;
    u32 _pad;
    const Exchange *exchange;
};

// The router's choice, and the hand-over of a step.
struct Route {
    const float *logits;  // [T, experts]
    const float *bias;
    u32 experts, chosen, groups, kept_groups;
    u32 normalise;
    float scale;
    u32 lanes, hidden;
    const float *input;  // [T, input_stride]: what the ducks multiply
    u32 input_stride;
    u32 mode;
    u32 *expert_out;     // [T, chosen] device, for tests and the timing of a pond without ducks
    float *weight_out;   // [T, chosen] device
    const Exchange *exchange;
};

// For each lane: the rows of sums that are present, and the additions of the canonical tree's top in order.
constexpr u32 NODES = 64;
struct LaneSums {
    u32 count;                   // nodes present: 0, 1 or more
    u32 additions;               // count - 1 when count > 0
    const float *row[NODES];     // pinned [hidden] each
    u8 to[NODES], from[NODES];   // row[to] += row[from]; the result is in row[result]
    u32 result;
    u32 _pad;
};

// One step's exchange with the ducks, in device memory; what it points to is pinned host memory, mapped into the device's addresses.
struct Exchange {
    u32 *handed;       // pinned: the number of the step whose input is complete
    const u32 *ready;  // pinned: the number of the step whose sums are complete
    const u32 *abort;  // pinned: not zero: give up
    u32 *failed;       // pinned: set to the step's number by a wait that gave up
    float *hidden;     // pinned [T, hidden]
    u32 *experts;      // pinned [T, chosen]
    float *weights;    // pinned [T, chosen]
    const LaneSums *sums;  // pinned [T]
    u32 *step;         // device: the number of the step under way, counted by the hand-over
    u32 *arrived;      // device: blocks of the hand-over that are through, zero between steps
    u64 *times;        // null, or pinned [TIMES][2]: nanoseconds at which step s was handed over and at which its wait ended, at s % TIMES
    u64 bound;         // nanoseconds that a wait lasts at most; 0: no ducks, nothing is waited for and nothing added
};
constexpr u32 TIMES = 256;

// The indexer: scores[t][u] = sum over h of weights[t][h] * head_scale * max(0, (q[t][h] . key[u]) * key_scale), u <= position.
struct Select {
    const float *q;        // [T, q_stride], heads of width dim
    const float *weights;  // [T, weights_stride]
    Cache keys;
    float *scores;         // [T, scores_stride]
    u32 *selection;        // [T, keep]: ascending positions
    u32 *count;            // [T]
    u32 q_stride, weights_stride, scores_stride;
    u32 heads, dim, keep;
    float head_scale, key_scale;
    u32 lanes, mode;
    const Lane *lane;
    const u32 *pages;
    u32 pages_stride;
    u32 first_lane;        // scores' row 0 belongs to this lane
};

// Attention in the latent space over a selection.
struct Attend {
    const float *q_latent;  // [T, q_stride]: heads of width latent.width
    const float *q_rope;    // [T, rope_row]: head h's part at h * rope_stride + rope_offset
    Cache latent, rope;
    const u32 *selection;   // [T, keep]
    const u32 *count;       // [T]
    float *part;            // [T, parts, heads, latent.width]
    float *part_max;        // [T, parts, heads]
    float *part_sum;        // [T, parts, heads]
    float *out;             // [T, out_stride]
    u32 q_stride, rope_row, rope_stride, rope_offset, out_stride;
    u32 heads, keep, parts;
    float scale;
    u32 lanes, mode, flags;
    const Lane *lane;
    const u32 *pages;
    u32 pages_stride;
    u32 _pad;
};
