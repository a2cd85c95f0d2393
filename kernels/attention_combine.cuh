// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// The sum of the partial results that attention_decode.cu writes for each chunk of keys: each is
// relative to the largest score of its own chunk, in base 2, and not yet divided by its sum.
//
// Included after attention_chunks.cuh. Constants: D, KV, GROUP.

#define Q_HEADS (KV * GROUP)
#define LOWEST (-1e30f)                  // the maximum of keys without a visible key

// 128 columns of one query by one warp: `count` chunks in ascending order, AHEAD in flight.
template <int AHEAD>
__device__ __forceinline__ void combine(u16* out, const float* partial, const float2* partial_ml,
                                        int count, float scale, int lane) {
    float top = LOWEST;
    for (int c = lane; c < count; c += 32) top = fmaxf(top, load_result(partial_ml + c).x);
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) {
        top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, mask));
    }
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float norm = 0.0f;
    for (int base = 0; base < count; base += 32) {
        float weight = 0.0f, total = 0.0f;
        if (base + lane < count) {
            const float2 ml = load_result(partial_ml + base + lane);
            weight = exp2_fast(ml.x - top);
            total = __fmul_rn(weight, ml.y);
        }
        const int chunks = min(32, count - base);
        for (int c = 0; c < chunks; c += AHEAD) {
            float4 parts[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const float* from = partial + (u64)(base + c + i) * D;
                if (c + i < chunks) parts[i] = load_result((const float4*)from + lane);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                if (c + i >= chunks) break;
                const float w = __shfl_sync(FULL_MASK, weight, c + i);
                norm = __fadd_rn(norm, __shfl_sync(FULL_MASK, total, c + i));
                sum.x = fmaf(w, parts[i].x, sum.x);
                sum.y = fmaf(w, parts[i].y, sum.y);
                sum.z = fmaf(w, parts[i].z, sum.z);
                sum.w = fmaf(w, parts[i].w, sum.w);
            }
        }
    }
    const float factor = scale / norm;
    store_vector(out + lane * 4, make_uint2(pack_bf16(sum.x * factor, sum.y * factor),
                                            pack_bf16(sum.z * factor, sum.w * factor)));
}

// The same for query head `head` of a row; the chunks of its sequence start at `low_chunk`.
template <int AHEAD>
__device__ __forceinline__ void combine_row(u16* out, const float* partial,
                                            const float2* partial_ml, int max_chunks, int row,
                                            int head, int position, int low_chunk, int slice,
                                            float scale, int lane) {
    const u64 place = (u64)row * Q_HEADS + head;
    const int first = chunk_of(first_visible(position));
    const u64 chunk = place * max_chunks + (first - low_chunk);
    combine<AHEAD>(out + place * D + slice * 128, partial + chunk * D + slice * 128,
                   partial_ml + chunk, chunk_of(position) - first + 1, scale, lane);
}
