// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// The sum of the partial results that attention_decode.cu writes for each chunk of keys: each is
// relative to the largest score of its own chunk, in base 2, and not yet divided by its sum.
//
// Included after attention_chunks.cuh. Constants: D, KV, GROUP.

#define Q_HEADS (KV * GROUP)
#define LOWEST (-1e30f)                  // the maximum of keys without a visible key

// 1, 2 or 4 columns of a lane.
template <int VEC>
struct Columns {
    float x[VEC];
};

template <int VEC>
__device__ __forceinline__ Columns<VEC> load_columns(const float* from) {
    Columns<VEC> c;
    if (VEC == 4) {
        const float4 v = load_result((const float4*)from);
        c.x[0] = v.x, c.x[VEC / 4] = v.y, c.x[VEC / 2] = v.z, c.x[VEC - 1] = v.w;
    } else if (VEC == 2) {
        const float2 v = load_result((const float2*)from);
        c.x[0] = v.x, c.x[VEC - 1] = v.y;
    } else {
        c.x[0] = load_result(from);
    }
    return c;
}

// 32 VEC columns of one query by one warp: `count` chunks in ascending order, AHEAD in flight, the
// first of them requested before the maxima are there.
template <int VEC, int AHEAD>
__device__ __forceinline__ void combine(u16* out, const float* partial, const float2* partial_ml,
                                        int count, float scale, int lane) {
    partial += lane * VEC;
    Columns<VEC> parts[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
        if (i < count) parts[i] = load_columns<VEC>(partial + (u64)i * D);
    }
    float top = LOWEST;
    for (int c = lane; c < count; c += 32) top = fmaxf(top, load_result(partial_ml + c).x);
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) {
        top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, mask));
    }
    Columns<VEC> sum = {};
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
            if (base + c > 0) {
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    if (c + i < chunks) {
                        parts[i] = load_columns<VEC>(partial + (u64)(base + c + i) * D);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                if (c + i >= chunks) break;
                const float w = __shfl_sync(FULL_MASK, weight, c + i);
                norm = __fadd_rn(norm, __shfl_sync(FULL_MASK, total, c + i));
#pragma unroll
                for (int e = 0; e < VEC; ++e) sum.x[e] = fmaf(w, parts[i].x[e], sum.x[e]);
            }
        }
    }
    const float factor = scale / norm;
    out += lane * VEC;
    if (VEC == 1) {
        *out = to_bf16(sum.x[0] * factor);
    } else {
#pragma unroll
        for (int e = 0; e < VEC; e += 2) {
            *(u32*)(out + e) = pack_bf16(sum.x[e] * factor, sum.x[min(e + 1, VEC - 1)] * factor);
        }
    }
}

// The same for query head `head` of a row; the chunks of its sequence start at `low_chunk`.
template <int VEC, int AHEAD>
__device__ __forceinline__ void combine_row(u16* out, const float* partial,
                                            const float2* partial_ml, int max_chunks, int row,
                                            int head, int position, int low_chunk, int slice,
                                            float scale, int lane) {
    const u64 place = (u64)row * Q_HEADS + head;
    const int first = chunk_of(first_visible(position));
    const u64 chunk = place * max_chunks + (first - low_chunk);
    combine<VEC, AHEAD>(out + place * D + slice * 32 * VEC,
                        partial + chunk * D + slice * 32 * VEC, partial_ml + chunk,
                        chunk_of(position) - first + 1, scale, lane);
}
