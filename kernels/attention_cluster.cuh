// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Clusters of blocks for a kv head of a sequence: a block has one chunk. Where one cluster has them
// all, each block sends each of the others its columns of D, as float32; then each adds the chunks of
// its columns, in the order and with the roundings of attention_combine.cuh. Nothing goes through
// memory then, and there is no ticket. More chunks are added by the last block, as without clusters:
// several chunks of a block, one after the other, would cost more than that.
//
// Included after attention_tiles.cuh. CLUSTER is 1 (none of this) or 8, as many as warps; D is 256,
// there is a window, and chunks are of one tile.

#if CLUSTER > 1

// Of a sequence's rows and kv head: clusters come one behind the other by number, then by kv head,
// then by sequence.
struct Place {
    int4 span;
    int sequence, kv, number, num_chunks;
};

__device__ __forceinline__ Place place_of_cluster(const int4* spans, int num_spans) {
    const int id = blockIdx.x / CLUSTER, sequence = id / KV % num_spans;
    const int4 span = spans[sequence];
    const int chunks = span.y > 0 ? chunk_of(span.z + span.y - 1) - chunk_of(first_visible(span.z))
                                    + 1 : 0;
    return {span, sequence, id % KV, id / KV / num_spans, chunks};
}

// The only item of this block, if any: the last chunks come first.
__device__ __forceinline__ bool find_item(Item& item, int round, const int4* spans,
                                          int num_spans) {
    const Place all = place_of_cluster(spans, num_spans);
    const int4 span = all.span;
    const int index = all.number * CLUSTER + (int)blockIdx.x % CLUSTER;
    if (round > 0 || index >= all.num_chunks) return false;
    const int chunk = chunk_of(span.z + span.y - 1) - index;
    item = {all.sequence, span.x, span.y, span.z, chunk, chunk_of(first_visible(span.z)),
            all.num_chunks, all.kv, 0};
    item.first_key = first_of(chunk, first_visible(span.z));
    item.stop = min(chunk_start(chunk + 1), span.z + span.y);
    return true;
}

// As in cluster.cuh, of four numbers on 16 bytes.
__device__ __forceinline__ void store_in_peer(PeerAddress to, int offset, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "r"(to + 4 * offset), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

// What the blocks of a cluster send to the one whose columns of D they are: (CLUSTER, QUERIES, 32)
// partial results, by chunks from the lowest on, with {maximum, sum} (CLUSTER, QUERIES).
struct Received {
    float* results;
    float2* mls;
};

__device__ __forceinline__ Received received(u8* shared) {
    float* results = (float*)shared;
    return {results, (float2*)(results + CLUSTER * QUERIES * WARP)};
}

// An item's results to the blocks of the cluster: warp w has the columns of block w.
__device__ __forceinline__ void send(const Received& to, const Item& item, const Sums& sums,
                                     const float (&acc)[MTILES][NT][4], int warp, int lane) {
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
    const Place all = place_of_cluster(spans, num_spans);
    const int low = chunk_of(first_visible(all.span.z)), rank = blockIdx.x % CLUSTER;
    const float scale = FP8 ? v_scale[all.kv] : 1.0f;
    for (int query = warp; query < all.span.y * GROUP; query += WARPS) {
        const int row = query / GROUP;
        const int first = chunk_of(first_visible(all.span.z + row)) - low;
        const int chunks = chunk_of(all.span.z + row) - low - first + 1;
        const float2 ml = lane < chunks ? from.mls[(first + lane) * QUERIES + query]
                                        : make_float2(LOWEST, 0.0f);
        float top = ml.x;
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1)
            top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, mask));
        const float weight = exp2_fast(ml.x - top), total = __fmul_rn(weight, ml.y);
        const float* part = from.results + (first * QUERIES + query) * WARP + lane;
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
