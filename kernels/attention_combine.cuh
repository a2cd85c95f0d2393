// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// The sum of the partial results that attention_decode.cu writes for each chunk of keys: each is
// relative to the largest score of its own chunk, in base 2, and not yet divided by its sum.
//
// Included after attention_chunks.cuh. Constants: D, KV, GROUP.

#define Q_HEADS (KV * GROUP)
#define GROUP_CHUNKS 32
#define MAX_CHUNKS 512                   // of a query, where a block adds them
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

// Those of chunks first .. first + AHEAD - 1 that lie below `count`, else zeros, which have weight 0;
// `stride` numbers from one chunk to the next.
template <int VEC, int AHEAD>
__device__ __forceinline__ void request_parts(Columns<VEC> (&parts)[AHEAD], const float* partial,
                                              u32 stride, int first, int count) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
        parts[i] = {};
        if (first + i < count)
            parts[i] = load_columns<VEC>(partial + (u64)(first + i) * stride);
    }
}

// Chunks base .. base + 31 of `count`, in ascending order, AHEAD in flight; the first AHEAD are in
// `parts` already. `partial` points at this lane's columns of chunk 0; ml: of chunk base + lane.
template <int VEC, int AHEAD>
__device__ __forceinline__ void add_group(Columns<VEC>& sum, float& norm,
                                          Columns<VEC> (&parts)[AHEAD], const float* partial,
                                          u32 stride, float2 ml, int base, int count, float top) {
    const float weight = exp2_fast(ml.x - top), total = __fmul_rn(weight, ml.y);
    const int chunks = min(GROUP_CHUNKS, count - base);
    sum = {};
    norm = 0.0f;
    for (int c = 0; c < chunks; c += AHEAD) {
        if (c > 0) request_parts<VEC, AHEAD>(parts, partial, stride, base + c, base + chunks);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            // those past the last add exact zeros
            static_assert(AHEAD % 4 == 0 || 4 % AHEAD == 0, "lanes past 31 have no chunk");
            if (i % 4 == 0 && c + i >= chunks) break;
            const float w = __shfl_sync(FULL_MASK, weight, c + i);
            norm = __fadd_rn(norm, __shfl_sync(FULL_MASK, total, c + i));
#pragma unroll
            for (int e = 0; e < VEC; ++e) sum.x[e] = fmaf(w, parts[i].x[e], sum.x[e]);
        }
    }
}

template <int VEC>
__device__ __forceinline__ void store_columns(u16* out, const Columns<VEC>& sum, float factor) {
    if (VEC == 1) {
        *out = to_bf16(sum.x[0] * factor);
    } else {
#pragma unroll
        for (int e = 0; e < VEC; e += 2) {
            *(u32*)(out + e) = pack_bf16(sum.x[e] * factor, sum.x[min(e + 1, VEC - 1)] * factor);
        }
    }
}

// Maximum and sum of a chunk, of weight 0 past the last.
__device__ __forceinline__ float2 load_ml(const float2* partial_ml, int chunk, int count) {
    return chunk < count ? load_result(partial_ml + chunk) : make_float2(LOWEST, 0.0f);
}

// 32 VEC columns of one query: groups of 32 chunks, each in ascending order, are added in ascending
// order. By one warp, or by `split` of a block, of which this is number `part`: `room` then holds
// the groups' sums, and all of them come here together. MORE: there may be more than 32.
template <int VEC, int AHEAD, bool MORE>
__device__ __forceinline__ void combine(u16* out, const float* partial, u32 stride,
                                        const float2* partial_ml, int count, float scale, int lane,
                                        int part = 0, int split = 1, float2* room = 0) {
    partial += lane * VEC;
    out += lane * VEC;
    int base = part * GROUP_CHUNKS;
    Columns<VEC> parts[AHEAD];
    request_parts<VEC, AHEAD>(parts, partial, stride, base, count);  // before the maxima are known
    float2 ml = load_ml(partial_ml, base + lane, count);
    float top = ml.x;
    if (MORE) {
        float tops[MAX_CHUNKS / 32];     // all at once
#pragma unroll
        for (int i = 0; i < MAX_CHUNKS / 32; ++i)
            tops[i] = load_ml(partial_ml, i * 32 + lane, count).x;
#pragma unroll
        for (int i = 0; i < MAX_CHUNKS / 32; ++i) top = fmaxf(top, tops[i]);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) {
        top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, mask));
    }
    Columns<VEC> sum = {}, more;
    float norm = 0.0f, more_norm;
    for (; base < count; base += split * GROUP_CHUNKS) {
        if (base >= split * GROUP_CHUNKS) {
            request_parts<VEC, AHEAD>(parts, partial, stride, base, count);
            ml = load_ml(partial_ml, base + lane, count);
        }
        add_group<VEC, AHEAD>(more, more_norm, parts, partial, stride, ml, base, count, top);
        if (split > 1) {
            room[base + lane] = make_float2(more.x[0], more_norm);
        } else if (base == 0) {
            sum = more;
            norm = more_norm;
        } else {
            norm = __fadd_rn(norm, more_norm);
#pragma unroll
            for (int e = 0; e < VEC; ++e) sum.x[e] = __fadd_rn(sum.x[e], more.x[e]);
        }
    }
    if (split > 1) {
        __syncthreads();
        if (part > 0) return;
        sum.x[0] = room[lane].x;
        norm = room[lane].y;
        for (base = GROUP_CHUNKS; base < count; base += GROUP_CHUNKS) {
            sum.x[0] = __fadd_rn(sum.x[0], room[base + lane].x);
            norm = __fadd_rn(norm, room[base + lane].y);
        }
    }
    store_columns<VEC>(out, sum, scale / norm);
}

// Where the partial result of a chunk of a query head's keys lies: by chunk, row, head, so that what
// is in use lies together however many chunks there may be.
__device__ __forceinline__ u64 partial_place(int chunk, int num_rows, u64 row, int head) {
    return ((u64)chunk * num_rows + row) * Q_HEADS + head;
}

// The same for query head `head` of a row; the chunks of its sequence start at `low_chunk`.
template <int VEC, int AHEAD, bool MORE>
__device__ __forceinline__ void combine_row(u16* out, const float* partial,
                                            const float2* partial_ml, int num_rows, int max_chunks,
                                            int row, int head, int position, int low_chunk,
                                            int slice, float scale, int lane, int part = 0,
                                            int split = 1, float2* room = 0) {
    const u64 place = (u64)row * Q_HEADS + head;
    const int first = chunk_of(first_visible(position));
    const int columns = slice * 32 * VEC;
    combine<VEC, AHEAD, MORE>(out + place * D + columns,
                        partial + partial_place(first - low_chunk, num_rows, row, head) * D
                            + columns,
                        (u32)num_rows * Q_HEADS * D,
                        partial_ml + place * max_chunks + (first - low_chunk),
                        chunk_of(position) - first + 1, scale, lane, part, split, room);
}

// A row of at most so many chunks, which are requested at once; the sums are those of combine. What
// needs no result of another launch stands in front of the wait for it.
template <int VEC, int CHUNKS>
struct OneRequest {
    const float* at[CHUNKS];
    const float2* ml;
    int count;

    __device__ __forceinline__ void prepare(const float* partial, const float2* partial_ml,
                                            int num_rows, int max_chunks, int row, int head,
                                            int position, int low_chunk, int slice, int lane) {
        const int first = chunk_of(first_visible(position));
        count = chunk_of(position) - first + 1;
        at[0] = partial + partial_place(first - low_chunk, num_rows, row, head) * D
                + slice * 32 * VEC + lane * VEC;
        const u32 stride = (u32)num_rows * Q_HEADS * D;
#pragma unroll
        for (int c = 1; c < CHUNKS; ++c)     // those that are not there have weight 0
            at[c] = at[c - 1] + (c < count ? stride : 0);
        ml = partial_ml + ((u64)row * Q_HEADS + head) * max_chunks + (first - low_chunk) + lane;
    }

    __device__ __forceinline__ void add(u16* out, float scale, int lane) const {
        float2 own = make_float2(LOWEST, 0.0f);
        if (lane < count) own = load_result(ml);
        Columns<VEC> parts[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) parts[c] = load_columns<VEC>(at[c]);
        float top = own.x;
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1)
            top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, mask));
        const float weight = exp2_fast(own.x - top), total = __fmul_rn(weight, own.y);
        Columns<VEC> sum = {};
        float norm = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const float w = __shfl_sync(FULL_MASK, weight, c);
            norm = __fadd_rn(norm, __shfl_sync(FULL_MASK, total, c));
#pragma unroll
            for (int e = 0; e < VEC; ++e) sum.x[e] = fmaf(w, parts[c].x[e], sum.x[e]);
        }
        store_columns<VEC>(out, sum, scale / norm);
    }
};
