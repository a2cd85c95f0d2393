// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// rms(x; w) = x * (mean(x^2) + eps)^(-1/2) * w, in four entries:
//   rms_norm          normed[i] = rms(x; w_i), i < OUTPUTS
//   rms_norm_add      x = (x + rms(a; wa)) * scale, then normed as above
//   rms_norm_sum      out = rms(a; wa) + rms(b; wb)
//   rms_norm_sum_add  x = (x + rms(rms(a; wa) + rms(b; wb); wc)) * scale, then normed
//
// x, out (T, H) f32, the residual; a (T, H) bf16 or f32; normed_i (T, H) bf16
// b (T, H) f32, or with CHOSEN the experts' results (T, CHOSEN, H) bf16, to be summed by weight
// best expert first: expert_ids (T, CHOSEN) i32, -1 for none; expert_weights (T, CHOSEN) f32
// wa, wb, wc, w_i (H) f32; scale: the layer_scalar where the sum ends the layer, else 1
//
// One launch closes a half layer and opens the next: OUTPUTS norms of the new residual (3 before
// dense MLP, experts and router, 1 before attention or the head, 0: none).
//
// Bytes moved: T H (8 for x, read and written; 2 or 4 for a; 4 or 2 CHOSEN for b; 2 for each
// normed) and the weights. Bound by latency: one read and a sum over the block for each norm.
// One block per row, 8 numbers per thread in registers; a sum runs over 8 numbers, then the warp,
// then the warps in order. So a row's bits depend on the row and H alone.
//
// PRECOND: H a multiple of 8 and at most 8,192; all arrays 16-byte aligned; no two overlap.
// Constants: H, OUTPUTS (0 to 3), A_FLOAT (a is f32), A_PARTS (J > 0: a is (T, J, H) f32, its
// parts are added in order and rounded to bf16), CHOSEN (0: b is f32).

#include "row_norms.cuh"

#define WARPS ((H / 8 + WARP - 1) / WARP)
#define THREADS (WARPS * WARP)

struct Outputs {
    u16* to[3];
    Row weights[OUTPUTS > 0 ? OUTPUTS : 1];
};

__device__ __forceinline__ void write_normed(const Outputs& outputs, const Row& x, u64 row,
                                             int column, float eps, float* room) {
    if (OUTPUTS == 0) return;
    const float inverse = inverse_rms(block_sum(squares(x), room, WARPS), eps);
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) {
        store_bf16(outputs.to[i] + row * H, scaled(x, inverse, outputs.weights[i]), column);
    }
}

__device__ __forceinline__ Outputs prepare(u16* normed_0, u16* normed_1, u16* normed_2,
                                           const float* w_0, const float* w_1, const float* w_2,
                                           int column) {
    Outputs outputs = {{normed_0, normed_1, normed_2}};
    const float* from[3] = {w_0, w_1, w_2};
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) outputs.weights[i] = load_weight(from[i], column);
    return outputs;
}

// What is requested of a, to be added later.
struct PartsOfA {
    Row rows[A_PARTS > 0 ? A_PARTS : 1];
};

__device__ __forceinline__ PartsOfA request_a(const void* a, u64 row, int column) {
    PartsOfA parts;
    if (A_PARTS > 0) {
#pragma unroll
        for (int j = 0; j < A_PARTS; ++j)
            parts.rows[j] = load_f32((const float*)a + (row * A_PARTS + j) * H, column);
    } else {
        parts.rows[0] = A_FLOAT ? load_f32((const float*)a + row * H, column)
                                : load_bf16((const u16*)a + row * H, column);
    }
    return parts;
}

__device__ __forceinline__ Row sum_a(const PartsOfA& parts, u32 zero = 0) {
    Row sum = parts.rows[0];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum.x[i] = __uint_as_float(__float_as_uint(sum.x[i]) | zero);
    if (A_PARTS > 0) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
            for (int j = 1; j < A_PARTS; ++j) sum.x[i] = __fadd_rn(sum.x[i], parts.rows[j].x[i]);
        }
#pragma unroll
        for (int i = 0; i < 8; i += 2) {     // rounded in pairs, four times as fast as alone
            const u32 pair = pack_bf16(sum.x[i], sum.x[i + 1]);
            sum.x[i] = bf16_low(pair);
            sum.x[i + 1] = bf16_high(pair);
        }
    }
    return sum;
}

// PRECOND: with a multiple of 4 chosen experts their ids and weights are 16-byte aligned.
// What is requested of b: the row, or the chosen experts' results and their weights.
struct PartsOfB {
    Row row;
    uint4 results[CHOSEN > 0 ? CHOSEN : 1];
    u32 weights[CHOSEN > 0 ? CHOSEN : 1];
    int ids[CHOSEN > 0 ? CHOSEN : 1];
};

__device__ __forceinline__ PartsOfB request_b(const void* b, const int* expert_ids,
                                              const float* expert_weights, u64 row, int column) {
    PartsOfB parts;
    if (CHOSEN == 0) parts.row = load_f32((const float*)b + row * H, column);
#pragma unroll
    for (int k = 0; k < CHOSEN; ++k) {
        const u64 pair = row * CHOSEN + k;
        parts.results[k] = make_uint4(0, 0, 0, 0);
        if (column < H) parts.results[k] = load_activations((const u16*)b + pair * H + column);
        if (CHOSEN % 4 != 0) {
            parts.weights[k] = load_activation_word(expert_weights + pair);
            parts.ids[k] = (int)load_activation_word(expert_ids + pair);
        } else if (k % 4 == 0) {
            const uint4 weights = load_activations(expert_weights + pair);
            const uint4 ids = load_activations(expert_ids + pair);
            const u32 both[2][4] = {{weights.x, weights.y, weights.z, weights.w},
                                    {ids.x, ids.y, ids.z, ids.w}};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                parts.weights[min(k + i, CHOSEN - 1)] = both[0][i];
                parts.ids[min(k + i, CHOSEN - 1)] = (int)both[1][i];
            }
        }
    }
    return parts;
}

// Product and sum round apart, as in moe_nvfp4_combine.
__device__ __forceinline__ Row sum_b(const PartsOfB& parts, u32 zero) {
    if (CHOSEN == 0) return parts.row;
    Row sum = {};
#pragma unroll
    for (int k = 0; k < CHOSEN; ++k) {
        const uint4 v = parts.results[k];
        const Row part = from_pairs(make_uint4(v.x | zero, v.y | zero, v.z | zero, v.w | zero));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float next = __fadd_rn(
                sum.x[i], __fmul_rn(__uint_as_float(parts.weights[k]), part.x[i]));
            sum.x[i] = parts.ids[k] >= 0 ? next : sum.x[i];  // what was not written may be NaN
        }
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
rms_norm(u16* normed_0, u16* normed_1, u16* normed_2, const float* x,
         const float* __restrict__ w_0, const float* __restrict__ w_1,
         const float* __restrict__ w_2, float eps) {
    __shared__ float room[WARPS];
    const int column = threadIdx.x * 8;
    const u64 row = blockIdx.x;
    allow_next_kernel();
    const Outputs outputs = prepare(normed_0, normed_1, normed_2, w_0, w_1, w_2, column);
    wait_for_previous_kernel();
    write_normed(outputs, load_f32(x + row * H, column), row, column, eps, room);
}

extern "C" __global__ void __launch_bounds__(THREADS)
rms_norm_add(float* x, u16* normed_0, u16* normed_1, u16* normed_2, const void* a,
             const float* __restrict__ wa, const float* __restrict__ w_0,
             const float* __restrict__ w_1, const float* __restrict__ w_2, float eps,
             float scale) {
    __shared__ float room[2][WARPS];
    __shared__ u32 zero;
    const int column = threadIdx.x * 8;
    const u64 row = blockIdx.x;
    if (threadIdx.x == 0) zero = 0;
    allow_next_kernel();
    const Outputs outputs = prepare(normed_0, normed_1, normed_2, w_0, w_1, w_2, column);
    const Row weight = load_weight(wa, column);
    wait_for_previous_kernel();
    const PartsOfA parts = request_a(a, row, column);
    Row residual = load_f32(x + row * H, column);
    // The assembler would request the residual behind the squares of the branch, and while the next
    // product fills its rings a read takes longer than they do. See rms_norm_sum.
    __syncthreads();
    const Row branch = sum_a(parts, *(volatile u32*)&zero);
    const float inverse = inverse_rms(block_sum(squares(branch), room[0], WARPS), eps);
    const Row normed = scaled(branch, inverse, weight);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        residual.x[i] = __fmul_rn(__fadd_rn(residual.x[i], normed.x[i]), scale);
    }
    store_f32(x + row * H, residual, column);
    write_normed(outputs, residual, row, column, eps, room[1]);
}

// The sums of both rows at once: one barrier.
__device__ __forceinline__ Row normed_sum(const Row& a, const Row& weight_a, const Row& b,
                                          const Row& weight_b, float eps, float (*room)[WARPS]) {
    const float own_a = warp_sum(squares(a)), own_b = warp_sum(squares(b));
    if (threadIdx.x % WARP == 0) {
        room[0][threadIdx.x / WARP] = own_a;
        room[1][threadIdx.x / WARP] = own_b;
    }
    __syncthreads();
    float sum_a = 0.0f, sum_b = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        sum_a += room[0][w];
        sum_b += room[1][w];
    }
    Row y = scaled(a, inverse_rms(sum_a, eps), weight_a);
    const Row other = scaled(b, inverse_rms(sum_b, eps), weight_b);
#pragma unroll
    for (int i = 0; i < 8; ++i) y.x[i] += other.x[i];
    return y;
}

extern "C" __global__ void __launch_bounds__(THREADS)
rms_norm_sum(float* __restrict__ out, const void* a, const void* b, const int* expert_ids,
             const float* expert_weights, const float* __restrict__ wa,
             const float* __restrict__ wb, float eps) {
    __shared__ float room[2][WARPS];
    __shared__ u32 zero;
    const int column = threadIdx.x * 8;
    const u64 row = blockIdx.x;
    if (threadIdx.x == 0) zero = 0;
    allow_next_kernel();
    const Row weight_a = load_weight(wa, column), weight_b = load_weight(wb, column);
    wait_for_previous_kernel();
    const PartsOfA parts_a = request_a(a, row, column);
    const PartsOfB parts_b = request_b(b, expert_ids, expert_weights, row, column);
    // The assembler would save registers and request each row when the one before is added, a read
    // from the L2 cache after the other. It moves no load across a barrier, and nothing that needs
    // what is read behind it (0) before it.
    __syncthreads();
    const u32 none = *(volatile u32*)&zero;
    const Row row_a = sum_a(parts_a, none), row_b = sum_b(parts_b, none);
    store_f32(out + row * H, normed_sum(row_a, weight_a, row_b, weight_b, eps, room), column);
}

extern "C" __global__ void __launch_bounds__(THREADS)
rms_norm_sum_add(float* x, u16* normed_0, u16* normed_1, u16* normed_2, const void* a,
                 const void* b, const int* expert_ids, const float* expert_weights,
                 const float* __restrict__ wa, const float* __restrict__ wb,
                 const float* __restrict__ wc, const float* __restrict__ w_0,
                 const float* __restrict__ w_1, const float* __restrict__ w_2, float eps,
                 float scale) {
    __shared__ float room[4][WARPS];
    __shared__ u32 zero;
    const int column = threadIdx.x * 8;
    const u64 row = blockIdx.x;
    if (threadIdx.x == 0) zero = 0;
    allow_next_kernel();
    const Row weight_a = load_weight(wa, column), weight_b = load_weight(wb, column);
    const Row weight_c = load_weight(wc, column);
    const Outputs outputs = prepare(normed_0, normed_1, normed_2, w_0, w_1, w_2, column);
    wait_for_previous_kernel();
    Row residual = load_f32(x + row * H, column);
    const PartsOfA parts_a = request_a(a, row, column);
    const PartsOfB parts_b = request_b(b, expert_ids, expert_weights, row, column);
    // The assembler would save registers and request each row when the one before is added, a read
    // from the L2 cache after the other. It moves no load across a barrier, and nothing that needs
    // what is read behind it (0) before it.
    __syncthreads();
    const u32 none = *(volatile u32*)&zero;
    const Row row_a = sum_a(parts_a, none), row_b = sum_b(parts_b, none);
    const Row sum = normed_sum(row_a, weight_a, row_b, weight_b, eps, room);
    const float inverse = inverse_rms(block_sum(squares(sum), room[2], WARPS), eps);
    const Row normed = scaled(sum, inverse, weight_c);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        residual.x[i] = __fmul_rn(__fadd_rn(residual.x[i], normed.x[i]), scale);
    }
    store_f32(x + row * H, residual, column);
    write_normed(outputs, residual, row, column, eps, room[3]);
}
