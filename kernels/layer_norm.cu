// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// layer_norm: x = bf16((x - mean(x)) * (var(x) + eps)^(-1/2) * w + b), in place.
//
// x (T, H) bf16, or f32 that holds bf16 numbers afterwards; w, b (H) f32
// The variance is the mean square of what is left after the mean is taken off.
//
// Bytes moved: 4 or 8 T H. Bound by memory; two sums over the block.
// One block per row, 8 numbers per thread in registers.
//
// PRECOND: H a multiple of 8 and at most 8,192; all arrays 16-byte aligned.
// Constants: H, IN_FLOAT (x is f32).

#define WARPS ((H / 8 + WARP - 1) / WARP)
#define THREADS (WARPS * WARP)

__device__ __forceinline__ void load_row(float (&x)[8], const float* from) {
    const uint4 low = load_activations(from), high = load_activations(from + 4);
    const u32 bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(bits[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm(void* x, const float* __restrict__ w, const float* __restrict__ b, float eps) {
    __shared__ float room[2][WARPS];
    const int column = threadIdx.x * 8;
    const bool used = column < H;
    const u64 place = (u64)blockIdx.x * H + column;
    float row[8] = {}, weight[8] = {}, bias[8] = {};
    allow_next_kernel();
    if (used) {
        load_row(weight, w + column);
        load_row(bias, b + column);
    }
    wait_for_previous_kernel();
    if (used && IN_FLOAT) load_row(row, (const float*)x + place);
    if (used && !IN_FLOAT) {
        const uint4 v = load_activations((const u16*)x + place);
        const u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            row[2 * i] = bf16_low(pairs[i]), row[2 * i + 1] = bf16_high(pairs[i]);
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += row[i];
    const float mean = __fdiv_rn(block_sum(sum, room[0], WARPS), H);
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        row[i] = used ? __fsub_rn(row[i], mean) : 0.0f;
        sum = fmaf(row[i], row[i], sum);
    }
    sum = block_sum(sum, room[1], WARPS);
    const float deviation = __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, H), eps));
    if (!used) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        row[i] = rounded_to_bf16(__fadd_rn(
            __fmul_rn(__fdiv_rn(row[i], deviation), weight[i]), bias[i]));
    }
    if (IN_FLOAT) {
        float* to = (float*)x + place;
        store_vector(to, make_float4(row[0], row[1], row[2], row[3]));
        store_vector(to + 4, make_float4(row[4], row[5], row[6], row[7]));
    } else {
        store_vector((u16*)x + place, make_uint4(
            pack_bf16(row[0], row[1]), pack_bf16(row[2], row[3]), pack_bf16(row[4], row[5]),
            pack_bf16(row[6], row[7])));
    }
}
