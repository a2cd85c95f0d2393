// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Weights of the launches that come next are brought into the L2 cache while launches between them
// and this one have next to nothing to read. A hint: no result depends on it.
//
// A range is `count` neighbouring units (row tiles) of each of some shares; a share begins `each`
// units behind the one before it, and one more behind each of the first `more` of them: so the
// blocks that read the shares later all find their first units there.
//
// Who calls it passes FetchAhead by value, as `const __grid_constant__ FetchAhead`. Before sm_90,
// which has no such instruction, nothing happens.
//
// PRECOND: addresses and units are multiples of 16 bytes; ranges lie within their arrays.

#define FETCH_RANGES 12
#define FETCH_PIECE 8192u                // bytes of one request

struct FetchRange {
    const u8* from;                      // of unit 0 of share 0
    u32 unit;                            // bytes
    int shares, each, more;
    int skipped, count;                  // units of a share before those wanted, and wanted
};

struct FetchAhead {
    FetchRange ranges[FETCH_RANGES];
    int num_ranges;
    int early;                           // how many row tiles before its end a product asks
};

__device__ __forceinline__ void fetch_piece(const u8* from, u32 num_bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(num_bytes));
#endif
}

// All ranges, shared out over the blocks of the grid's first row; by so many threads of each block,
// who say which of them they are. A warp's lanes ask one after the other, so one lane of each warp
// is soonest done.
__device__ __forceinline__ void fetch_ahead(const FetchAhead& fetch, int worker,
                                            int num_workers = WARP) {
#pragma unroll 1
    for (int r = 0; r < fetch.num_ranges; ++r) {
        const FetchRange& range = fetch.ranges[r];
        const u32 wanted = range.count * range.unit;
        const u32 pieces = (wanted + FETCH_PIECE - 1) / FETCH_PIECE;
#pragma unroll 1
        for (u32 i = blockIdx.x + gridDim.x * worker; i < range.shares * pieces;
             i += gridDim.x * num_workers) {
            const u32 share = i / pieces, first = (i - share * pieces) * FETCH_PIECE;
            const u32 units = share * range.each + min(share, (u32)range.more) + range.skipped;
            fetch_piece(range.from + (u64)units * range.unit + first,
                        min(FETCH_PIECE, wanted - first));
        }
    }
}
