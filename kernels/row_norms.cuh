// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Eight numbers of a row in a thread, and the norm of the row by its sum of squares: for rms_norm.cu
// and moe_route.cu. All that rounds is an intrinsic: the same bits everywhere.
//
// Constants: H.

struct Row {
    float x[8];
};

__device__ __forceinline__ Row load_f32(const float* from, int column) {
    Row r = {};
    if (column < H) {
        const uint4 low = load_activations(from + column);
        const uint4 high = load_activations(from + column + 4);
        const u32 bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) r.x[i] = __uint_as_float(bits[i]);
    }
    return r;
}

__device__ __forceinline__ Row from_pairs(uint4 v) {
    Row r;
    const u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        r.x[2 * i] = bf16_low(pairs[i]);
        r.x[2 * i + 1] = bf16_high(pairs[i]);
    }
    return r;
}

__device__ __forceinline__ Row load_bf16(const u16* from, int column) {
    return from_pairs(column < H ? load_activations(from + column) : make_uint4(0, 0, 0, 0));
}

// Weights never change: they are read before the wait.
__device__ __forceinline__ Row load_weight(const float* from, int column) {
    return load_f32(from, column);
}

__device__ __forceinline__ void store_f32(float* to, const Row& r, int column) {
    if (column < H) {
        *(float4*)(to + column) = make_float4(r.x[0], r.x[1], r.x[2], r.x[3]);
        *(float4*)(to + column + 4) = make_float4(r.x[4], r.x[5], r.x[6], r.x[7]);
    }
}

__device__ __forceinline__ void store_bf16(u16* to, const Row& r, int column) {
    if (column < H) {
        *(uint4*)(to + column) = make_uint4(pack_bf16(r.x[0], r.x[1]), pack_bf16(r.x[2], r.x[3]),
                                            pack_bf16(r.x[4], r.x[5]), pack_bf16(r.x[6], r.x[7]));
    }
}

__device__ __forceinline__ float squares(const Row& r) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(r.x[i], r.x[i], sum);
    return sum;
}

// sum / H, rounded once, without a division's check of its operands: with a rounded reciprocal, one
// step from the exact remainder is that (Markstein).
__device__ __forceinline__ float mean_of(float sum) {
    const float part = 1.0f / H, near = __fmul_rn(sum, part);
    return __fmaf_rn(__fmaf_rn(-near, H, sum), part, near);
}

__device__ __forceinline__ float inverse_rms(float sum, float eps) {
    return __frcp_rn(__fsqrt_rn(__fadd_rn(mean_of(sum), eps)));
}

__device__ __forceinline__ Row scaled(const Row& r, float factor, const Row& weight) {
    Row y;
#pragma unroll
    for (int i = 0; i < 8; ++i) y.x[i] = __fmul_rn(__fmul_rn(r.x[i], factor), weight.x[i]);
    return y;
}
