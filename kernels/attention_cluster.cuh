// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// How the blocks of a cluster share a sequence's rows, a kv head and a group of queries, where the
// chunks are few: each does every CLUSTER-th chunk and sends each block its columns of D from it, as
// float32; then each adds the chunks of its columns, in the order and with the roundings of
// attention_combine.cuh. Nothing goes through memory, and no launch or ticket comes behind.
//
// Two HALVES of a block, of 8 warps each, have a chunk each at a time, and all but the queries apart.
//
// Included after attention_tiles.cuh. CLUSTER is 1 (none of this) or 8, as many as warps; D is 256,
// and there is a window that has at most 32 chunks. HALVES is 2 only there, with chunks of one tile
// and one tile of queries.

#if CLUSTER > 1

#define MOST_CHUNKS ((WINDOW + 13) / CHUNK + 2)          // that 16 rows see together

// What the blocks of a cluster share: a sequence's rows and kv head, and a group of their queries.
struct Shared {
    int4 span;
    int sequence, kv, group;
};

__device__ __forceinline__ Shared share_of_cluster(const int4* spans, int num_spans) {
    const int groups = gridDim.x / (CLUSTER * KV * num_spans), id = blockIdx.x / CLUSTER;
    const int sequence = id / (groups * KV);
    return {spans[sequence], sequence, id / groups % KV, id % groups};
}

// The item of this half's round: every CLUSTER HALVES-th chunk, the last one first; for the second
// half, where the first one has the lowest, one whose chunk is -1 and of which no key is seen.
__device__ __forceinline__ bool find_item(Item& item, int round, const int4* spans,
                                          int num_spans) {
    const Shared all = share_of_cluster(spans, num_spans);
    const int4 span = all.span;
    const int low = chunk_of(first_visible(span.z)), high = chunk_of(span.z + span.y - 1);
    const int end = span.z + span.y, half = threadIdx.x / (WARPS * WARP);
    const int chunk = high - ((int)blockIdx.x % CLUSTER + round * CLUSTER) * HALVES - half;
    if (all.group * QUERIES >= span.y * GROUP || chunk + half < low) return false;
    item = {all.sequence, span.x, span.y, span.z, chunk, low, high - low + 1, all.kv, all.group};
    item.first_key = first_of(chunk, first_visible(span.z));
    item.stop = min(chunk_start(chunk + 1), end);
    if (HALVES > 1 && chunk < low) {
        item.chunk = -1;
        item.first_key = item.stop = (end + TILE - 1) / TILE * TILE;
    }
    return true;
}

// As in cluster.cuh, of four numbers on 16 bytes.
__device__ __forceinline__ void store_in_peer(PeerAddress to, int offset, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "r"(to + 4 * offset), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

// What the blocks of a cluster send to the one whose columns of D they are: (MOST_CHUNKS, QUERIES,
// 32) partial results, by chunks from the lowest on, with {maximum, sum} (MOST_CHUNKS, QUERIES).
struct Received {
    float* results;
    float2* mls;
};

__device__ __forceinline__ Received received(u8* shared) {
    float* results = (float*)shared;
    return {results, (float2*)(results + MOST_CHUNKS * QUERIES * WARP)};
}

// An item's results to the blocks of the cluster: warp w has the columns of block w.
__device__ __forceinline__ void send(const Received& to, const Item& item, const Sums& sums,
                                     const float (&acc)[MTILES][NT][4], int warp, int lane) {
    if (item.chunk < 0) return;
    const int place = (item.chunk - item.low_chunk) * QUERIES;
    const PeerAddress results = address_in_peer(to.results, warp);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int query = n * 8 + lane % 4 * 2 + e;
            store_in_peer(results, (place + query) * WARP + lane / 4 * 4, make_float4(
                acc[0][n][e], acc[0][n][2 + e], acc[1][n][e], acc[1][n][2 + e]));
        }
    }
    if (warp >= NT) return;
    const int query = warp * 8 + lane / 4;               // the same sums in four lanes
    for (int rank = lane % 4; rank < CLUSTER; rank += 4) {
        const PeerAddress mls = address_in_peer((float*)to.mls, rank);
        store_in_peer(mls, (place + query) * 2, sums.top);
        store_in_peer(mls, (place + query) * 2 + 1, sums.total);
    }
}

// When all have sent theirs: the sum of the chunks in this block's columns, as combine does it.
__device__ __forceinline__ void add_received(u16* __restrict__ out, const Received& from,
                                             const float* v_scale, const int4* spans,
                                             int num_spans, int warp, int lane) {
    wait_for_cluster();
    const Shared all = share_of_cluster(spans, num_spans);
    const int count = all.span.y * GROUP - all.group * QUERIES;
    const int low = chunk_of(first_visible(all.span.z)), rank = blockIdx.x % CLUSTER;
    const float scale = FP8 ? v_scale[all.kv] : 1.0f;
    for (int i = warp; i < min(QUERIES, count); i += WARPS * HALVES) {
        const int query = all.group * QUERIES + i, row = query / GROUP;
        const int first = chunk_of(first_visible(all.span.z + row)) - low;
        const int chunks = chunk_of(all.span.z + row) - low - first + 1;
        const float2 ml = lane < chunks ? from.mls[(first + lane) * QUERIES + i]
                                        : make_float2(LOWEST, 0.0f);
        float top = ml.x;
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1)
            top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, mask));
        const float weight = exp2_fast(ml.x - top), total = __fmul_rn(weight, ml.y);
        const float* part = from.results + (first * QUERIES + i) * WARP + lane;
        float sum = 0.0f, norm = 0.0f;
#pragma unroll 4
        for (int c = 0; c < chunks; ++c) {
            norm = __fadd_rn(norm, __shfl_sync(FULL_MASK, total, c));
            sum = fmaf(__shfl_sync(FULL_MASK, weight, c), part[c * QUERIES * WARP], sum);
        }
        const u64 place = (u64)(all.span.x + row) * Q_HEADS + all.kv * GROUP + query % GROUP;
        out[place * D + rank * WARP + lane] = to_bf16(sum * (scale / norm));
    }
}

#endif
