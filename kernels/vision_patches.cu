// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// What a vision part does beside products, norms and attention, on the P patches of one image that
// stand row by row, `columns` in a row:
//   vision_numbers      out = x / 255, CENTRED: 2 (x / 255 - 1/2)
//   vision_widen        out = x, bf16 to f32
//   vision_positions    x += x_table[p mod columns] + y_table[p div columns]
//   vision_heads        norm of each head (q and k with a weight), axial rope of q and k
//   vision_pool         out = the mean of each size x size block of patches, times scale
//   vision_standardize  x = bf16((x - a) * b); vision_bias: x = bf16(x + a)
//   vision_clip         out = x held to [low, high]
//
// numbers: out (P, N) bf16, patches (P, N) u8; widen: out (P, N) f32, x (P, N) bf16
// positions: x (P, N) f32; tables (rows, N) f32 whose rows begin `pitch` numbers apart
// heads: qkv (P, 3, HEADS, D) bf16 in place; norms (D) f32; cosines, sines (places, D / 4) f32
// pool: out (P / size^2, N) f32, x (P, N) f32; standardize, bias: x (P, N) f32, a, b (N) f32
// clip: out bf16 (rows `pitch` numbers apart), x (P, N) bf16
//
// Bytes moved: what is read and written, once. Bound by memory, the first and last few by latency.
// One block does 8 THREADS numbers of a row, blockIdx.y is the row; heads: one block a patch, one
// warp a head, a lane turns two pairs of numbers. Numbers are added in one order: of pool row by
// row of a block.
//
// PRECOND: N a multiple of 8; D a multiple of 8, at most 128; all arrays 16-byte aligned.
// Constants: N and, for heads, D and HEADS instead; CENTRED for numbers.

#define THREADS 128
#define HEAD_WARPS 8

struct Row {
    float x[8];
};

__device__ __forceinline__ int first_column() {
    return (blockIdx.x * THREADS + threadIdx.x) * 8;
}

__device__ __forceinline__ Row load_f32(const float* from) {
    const uint4 low = load_activations(from), high = load_activations(from + 4);
    return {{__uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(low.z),
             __uint_as_float(low.w), __uint_as_float(high.x), __uint_as_float(high.y),
             __uint_as_float(high.z), __uint_as_float(high.w)}};
}

__device__ __forceinline__ Row load_bf16(const u16* from) {
    const uint4 v = load_activations(from);
    return {{bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y), bf16_low(v.z),
             bf16_high(v.z), bf16_low(v.w), bf16_high(v.w)}};
}

__device__ __forceinline__ void store_f32(float* to, const Row& r) {
    store_vector(to, make_float4(r.x[0], r.x[1], r.x[2], r.x[3]));
    store_vector(to + 4, make_float4(r.x[4], r.x[5], r.x[6], r.x[7]));
}

__device__ __forceinline__ void store_bf16(u16* to, const Row& r) {
    store_vector(to, make_uint4(pack_bf16(r.x[0], r.x[1]), pack_bf16(r.x[2], r.x[3]),
                                pack_bf16(r.x[4], r.x[5]), pack_bf16(r.x[6], r.x[7])));
}

#ifdef N
#ifdef CENTRED
extern "C" __global__ void __launch_bounds__(THREADS)
vision_numbers(u16* __restrict__ out, const u8* patches) {
    const int column = first_column();
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= N) return;
    const u64 place = (u64)blockIdx.y * N + column;
    const u32 words[2] = {load_activation_word(patches + place),
                          load_activation_word(patches + place + 4)};
    Row r;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        r.x[i] = __fmul_rn((float)(words[i / 4] >> i % 4 * 8 & 0xFF), 1.0f / 255.0f);
        if (CENTRED) r.x[i] = __fmul_rn(__fsub_rn(r.x[i], 0.5f), 2.0f);
    }
    store_bf16(out + place, r);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
vision_widen(float* __restrict__ out, const u16* x) {
    const int column = first_column();
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= N) return;
    const u64 place = (u64)blockIdx.y * N + column;
    store_f32(out + place, load_bf16(x + place));
}

extern "C" __global__ void __launch_bounds__(THREADS)
vision_positions(float* x, const float* __restrict__ x_table, const float* __restrict__ y_table,
                 int columns, int pitch) {
    const int column = first_column();
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= N) return;
    float* place = x + (u64)blockIdx.y * N + column;
    Row r = load_f32(place);
    const Row a = load_f32(x_table + (u64)(blockIdx.y % columns) * pitch + column);
    const Row b = load_f32(y_table + (u64)(blockIdx.y / columns) * pitch + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) r.x[i] = __fadd_rn(__fadd_rn(r.x[i], a.x[i]), b.x[i]);
    store_f32(place, r);
}

extern "C" __global__ void __launch_bounds__(THREADS)
vision_pool(float* __restrict__ out, const float* x, int columns, int size, float scale) {
    const int column = first_column(), across = columns / size;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= N) return;
    const int top = blockIdx.y / across * size, left = blockIdx.y % across * size;
    Row sum = {};
    const float* from = x + (u64)(top * columns + left) * N + column;
    for (int row = 0; row < size; ++row, from += (u64)columns * N) {
#pragma unroll 1
        for (int i = 0; i < size; ++i) {
            const Row r = load_f32(from + (u64)i * N);
#pragma unroll
            for (int j = 0; j < 8; ++j) sum.x[j] = __fadd_rn(sum.x[j], r.x[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) sum.x[j] = __fmul_rn(sum.x[j], scale);
    store_f32(out + (u64)blockIdx.y * N + column, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS)
vision_standardize(float* x, const float* __restrict__ a, const float* __restrict__ b) {
    const int column = first_column();
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= N) return;
    float* place = x + (u64)blockIdx.y * N + column;
    Row r = load_f32(place);
    const Row less = load_f32(a + column), times = load_f32(b + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        r.x[i] = rounded_to_bf16(__fmul_rn(__fsub_rn(r.x[i], less.x[i]), times.x[i]));
    }
    store_f32(place, r);
}

extern "C" __global__ void __launch_bounds__(THREADS)
vision_bias(float* x, const float* __restrict__ a) {
    const int column = first_column();
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= N) return;
    float* place = x + (u64)blockIdx.y * N + column;
    Row r = load_f32(place);
    const Row more = load_f32(a + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) r.x[i] = rounded_to_bf16(__fadd_rn(r.x[i], more.x[i]));
    store_f32(place, r);
}

extern "C" __global__ void __launch_bounds__(THREADS)
vision_clip(u16* out, const u16* x, float low, float high, int pitch) {
    const int column = first_column();
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= N) return;
    Row r = load_bf16(x + (u64)blockIdx.y * N + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) r.x[i] = fminf(fmaxf(r.x[i], low), high);
    store_bf16(out + (u64)blockIdx.y * pitch + column, r);
}
#else
// A lane has the numbers f and f + 1 of a half of a head's lower quarter, and those of its upper
// one, which turn with them.
extern "C" __global__ void __launch_bounds__(HEAD_WARPS * WARP)
vision_heads(u16* qkv, const float* __restrict__ q_norm, const float* __restrict__ k_norm,
             const float* __restrict__ cosines, const float* __restrict__ sines, int columns,
             float eps) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int half = lane / (D / 8), pair = lane % (D / 8) * 2;
    const int low = half * (D / 2) + pair, high = low + D / 4;
    const bool used = lane < D / 4;
    allow_next_kernel();
    wait_for_previous_kernel();
    float c[2] = {}, s[2] = {};
    if (used) {
        const int place = (half ? blockIdx.x / columns : blockIdx.x % columns) * (D / 4) + pair;
#pragma unroll
        for (int i = 0; i < 2; ++i) c[i] = cosines[place + i], s[i] = sines[place + i];
    }
    for (int head = warp; head < 3 * HEADS; head += HEAD_WARPS) {
        const int part = head / HEADS;
        u16* row = qkv + ((u64)blockIdx.x * (3 * HEADS) + head) * D;
        float a[2] = {}, b[2] = {};
        if (used) {
            const u32 first = load_activation_word(row + low);
            const u32 second = load_activation_word(row + high);
            a[0] = bf16_low(first), a[1] = bf16_high(first);
            b[0] = bf16_low(second), b[1] = bf16_high(second);
        }
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; ++i) sum = __fmaf_rn(a[i], a[i], __fmaf_rn(b[i], b[i], sum));
        const float inverse =
            __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(warp_sum(sum), D), eps)));
        if (!used) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            a[i] = __fmul_rn(a[i], inverse), b[i] = __fmul_rn(b[i], inverse);
            if (part < 2) {
                const float* norm = part ? k_norm : q_norm;
                const float x = __fmul_rn(a[i], norm[low + i]);
                const float y = __fmul_rn(b[i], norm[high + i]);
                a[i] = __fsub_rn(__fmul_rn(x, c[i]), __fmul_rn(y, s[i]));
                b[i] = __fadd_rn(__fmul_rn(y, c[i]), __fmul_rn(x, s[i]));
            }
        }
        *(u32*)(row + low) = pack_bf16(a[0], a[1]);
        *(u32*)(row + high) = pack_bf16(b[0], b[1]);
    }
}
#endif
