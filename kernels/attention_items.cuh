// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Which items of work the blocks of attention_decode.cu do, a chunk of keys of a sequence and a kv
// head each, and in which order.
//
// Included by attention_tiles.cuh. Constants: GROUP, KV, NT, APPEND, CLUSTER, CLAIMS.

struct Item {
    int sequence, first_row, num_rows, start;    // start: position of the first row
    int chunk, low_chunk, num_chunks;
    int kv, group;                               // group of QUERIES queries
    int first_key, stop;                         // of its keys that some row sees
};

// What the blocks of a kv head claim in turn: chunk `first` and those before it, down to `lowest`;
// claim number `last` is the last one of a launch.
struct Order {
    int lowest, first, last;
};

#if CLUSTER > 1                          // see attention_cluster.cuh

__device__ __forceinline__ bool find_item(Item& item, int index, const int4* spans, int num_spans);

#elif CLAIMS

// This block's first item, of the only row of the only sequence, if any: the blocks of a kv head
// take its last chunks, which are the longest, in turn.
__device__ __forceinline__ bool find_first(Item& item, Order& order, const int4* spans, int) {
    const int4 span = spans[0];
    const int low = chunk_of(first_visible(span.z)), high = chunk_of(span.z), all = high - low + 1;
    const int blocks = gridDim.x / KV, block = blockIdx.x / KV;     // of a kv head
    order = {low, high - blocks, max(all - blocks, 0) + min(all, blocks) - 1};
    item = {0, span.x, 1, span.z, high - block, low, all, (int)blockIdx.x % KV, 0};
    item.first_key = first_of(item.chunk, first_visible(span.z));
    item.stop = min(chunk_start(item.chunk + 1), span.z + 1);
    return span.y > 0 && block < blocks && item.chunk >= low;
}

// A later item in the place of one of the same kv head, by one thread; false past the last. Blocks
// get unlike shares of the memory's rate, so each takes the next chunk when it is about to end one.
// Every block with an item claims until it gets none, so the counter is back at zero behind the last
// claim. The counters lie behind the tickets of the sum of chunks.
__device__ __forceinline__ bool claim_next(Item& item, const Order& order, u32* tickets) {
    item.chunk = order.first - (int)atomicInc(tickets + KV * MAX_GROUPS + item.kv, order.last);
    item.first_key = first_of(item.chunk, first_visible(item.start));
    item.stop = chunk_start(item.chunk + 1);
    return item.chunk >= order.lowest;
}

#elif APPEND

// Work item number `index` of the only row of the only sequence, its last chunks first; false past
// the end.
__device__ __forceinline__ bool find_item(Item& item, int index, const int4* spans, int) {
    const int4 span = spans[0];
    const int low = chunk_of(first_visible(span.z)), high = chunk_of(span.z);
    if (span.y <= 0 || index >= (high - low + 1) * KV) return false;
    item = {0, span.x, 1, span.z, high - index / KV, low, high - low + 1, index % KV, 0};
    item.first_key = first_of(item.chunk, first_visible(span.z));
    item.stop = min(chunk_start(item.chunk + 1), item.start + 1);
    return true;
}

#else

// Items of one sequence, and the part of them that decides which is which.
struct Items {
    int4 span;
    int groups, low, high, count;        // low, high: its first and last chunk
};

__device__ __forceinline__ Items items_of(const int4* spans, int b, int num_spans) {
    Items of = {};
    if (b < num_spans) of.span = spans[b];
    if (of.span.y > 0) {
        of.groups = (of.span.y * GROUP + QUERIES - 1) / QUERIES;
        of.low = chunk_of(first_visible(of.span.z));
        of.high = chunk_of(of.span.z + of.span.y - 1);
        of.count = (of.high - of.low + 1) * KV * of.groups;
    }
    return of;
}

// Work item number `index`, the last chunks of each sequence first; false past the end. Each lane of
// a warp looks at a sequence.
__device__ __forceinline__ bool find_item(Item& item, int index, const int4* spans,
                                          int num_spans) {
    const int lane = threadIdx.x % WARP;
    for (int base = 0; base < num_spans; base += WARP) {
        Items of = items_of(spans, base + lane, num_spans);
        int upto = of.count, owner = 0;
        if (num_spans > 1) {
#pragma unroll
            for (int step = 1; step < WARP; step *= 2) {
                const int other = __shfl_up_sync(FULL_MASK, upto, step);
                if (lane >= step) upto += other;
            }
            owner = __ffs(__ballot_sync(FULL_MASK, upto > index)) - 1;
        } else {
            upto = of.count = __shfl_sync(FULL_MASK, of.count, 0);
            if (index >= upto) owner = -1;
        }
        if (owner >= 0) {
            const int rest = index - __shfl_sync(FULL_MASK, upto - of.count, owner);
            const int groups = __shfl_sync(FULL_MASK, of.groups, owner);
            const int low = __shfl_sync(FULL_MASK, of.low, owner);
            const int high = __shfl_sync(FULL_MASK, of.high, owner);
            const int head = rest % (KV * groups);
            item = {base + owner, __shfl_sync(FULL_MASK, of.span.x, owner),
                    __shfl_sync(FULL_MASK, of.span.y, owner),
                    __shfl_sync(FULL_MASK, of.span.z, owner), high - rest / (KV * groups), low,
                    high - low + 1, head / groups, head % groups};
            item.first_key = first_of(item.chunk, first_visible(item.start));
            item.stop = min(chunk_start(item.chunk + 1), item.start + item.num_rows);
            return true;
        }
        index -= __shfl_sync(FULL_MASK, upto, WARP - 1);
    }
    return false;
}

#endif

// This block's item of a round. Items of a sequence get shorter from one to the next: every second
// round goes through the blocks backwards, but for the kv head, whose queries a block keeps.
__device__ __forceinline__ int index_of(int round) {
    const int block = blockIdx.x, blocks = gridDim.x;
    if (CLUSTER > 1) return round;       // there is one
    if (APPEND && round % 2 == 1 && blocks % KV == 0)
        return (round + 1) * blocks - KV - block + 2 * (block % KV);
    return round * blocks + block;
}

#if !CLAIMS

__device__ __forceinline__ bool find_first(Item& item, Order&, const int4* spans, int num_spans) {
    return find_item(item, index_of(0), spans, num_spans);
}

__device__ __forceinline__ bool find_next(Item& item, const Order&, int round, const int4* spans,
                                          int num_spans) {
    return find_item(item, index_of(round), spans, num_spans);
}

#endif
