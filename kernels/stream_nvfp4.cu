// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// stream_nvfp4: out = x W^T for 2 to 16 rows, W in NVFP4, fragment order; weights as a stream
//   with GEGLU: out = gelu_tanh(bf16(x G^T)) * bf16(x U^T), G and U interleaved by 8 rows
//
// out        (T, N) bf16; with GEGLU (T, I)
// x          (T, M) bf16
// codes, scales  of (N, M), or (2 I, M), in fragment order
// row_scales (N / 16, 2) f32   of rows 0..7 and 8..15 of each row tile
//
// Bytes moved: N M 9 / 16 of weights, T (N + M) 2 of rows; but every multiprocessor reads the rows,
// 32 M bytes, from the L2, which is as much as its share of the weights. So a cluster of CLUSTER
// blocks does some neighbouring row tiles, each block a part of the columns of all of them: block
// r has PARTS of the K_WARPS parts that gemm_nvfp4 cuts the columns into, WARP_TILES tiles each.
// The rows of these lie in shared memory in fragment order, read once. A warp does its part of
// ROW_TILES row tiles at a time, with its tiles of the rows in registers where they are HELD there,
// and its weights come through a ring of asynchronous copies, of
// which a stage is STAGE_TILES tiles of each of them; TEAMS warps share a part and take such
// groups of row tiles by turns. Behind each turn all meet: a warp leaves its totals with the block
// that has that row of x (those of equal token % CLUSTER), which adds them in the order of the
// parts. Operands, sums and their order are those of gemm_nvfp4 and gemv_nvfp4, bit for bit.
//
// Cluster b does row tiles b `each` + min(b, `more`) and on, one more where b < `more`.
//
// Dynamic shared memory, in this order: a ring for each warp; the rows, if not HELD, BLOCKS * 1024
// bytes a tile of columns; totals.
// PRECOND: M a multiple of 8, x and out 16-byte aligned; at most 16 rows a cluster (blockIdx.y);
// K_WARPS * WARP_TILES == COLUMN_TILES, WARP_TILES a multiple of STAGE_TILES, STAGE_TILES *
// ROW_TILES at most 8, STAGES at least 2; CLUSTER 1, 2, 4 or 8; TEAMS * ROW_TILES at most 16.
// Constants: COLUMNS (M), COLUMN_TILES, K_WARPS, WARP_TILES, BLOCKS (of 8 activation rows: 1 or
// 2), GEGLU, CLUSTER, TEAMS, HELD, ROW_TILES, STAGE_TILES, STAGES, E2M1_HARDWARE.

#include "cluster.cuh"
#include "prefill_tile.cuh"

#define PARTS ((K_WARPS + CLUSTER - 1) / CLUSTER)
#define WARPS (PARTS * TEAMS)
#define TURN (TEAMS * ROW_TILES)
#define WARP_STAGES (WARP_TILES / STAGE_TILES)
#define STAGE_TILE_BYTES 576
#define STAGE_CODES (ROW_TILES * STAGE_TILES * TILE_CODE_VECTORS)        // in 16 bytes
#define STAGE_VECTORS (ROW_TILES * STAGE_TILES * STAGE_TILE_BYTES / 16)
#define ROW_VECTORS (COLUMN_TILES * TILE_CODE_VECTORS)                   // of a row tile's codes
#define SCALE_LANES (STAGE_TILES * TILE_SCALE_WORDS / 4)                 // for one row tile
// Totals of one row tile and part: `TOKEN_STRIDE` numbers a row of x, so that no bank is met twice.
#define TOKENS (8 * BLOCKS / CLUSTER)
#define TOKEN_STRIDE (CLUSTER == 1 ? 20 : 24)
#define TOTAL_SIZE (TOKENS * TOKEN_STRIDE)
#define LOADS_AT_ONCE 4                  // tiles of activations

extern __shared__ __align__(16) uint4 stream_memory[];

// What a warp has still to request: where the next stage begins for this lane, its place in the
// row tiles, and how many row tiles there are from the first of them on.
struct StreamRequests {
    const uint4 *codes, *scales;
    int stage, left;
};

// Requests the next stage, if there is one, by all lanes of a warp, and steps on.
__device__ __forceinline__ void request_stage(uint4* slot, StreamRequests& next, int lane) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r)
        if (r < next.left) {
#pragma unroll
            for (int i = 0; i < STAGE_TILES; ++i)
                copy_async(slot + (r * STAGE_TILES + i) * TILE_CODE_VECTORS + lane,
                           next.codes + r * ROW_VECTORS + i * TILE_CODE_VECTORS, true);
        }
    if (lane < SCALE_LANES * min(next.left, ROW_TILES))
        copy_async(slot + STAGE_CODES + lane, next.scales, true);
    const bool last = WARP_STAGES == 1 || ++next.stage == WARP_STAGES;
    const int on = last ? TURN * COLUMN_TILES - WARP_TILES + STAGE_TILES : STAGE_TILES;
    next.codes += on * TILE_CODE_VECTORS;
    next.scales += on * (TILE_SCALE_WORDS / 4);
    if (last) next.stage = 0, next.left -= TURN;
}

// The block's tiles of the rows into shared memory, those of this team's warps.
__device__ __forceinline__ void place_rows(uint4* rows, const u16* x, int first_token,
                                           int num_tokens, int first_part, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3, own = warp % PARTS, team = warp / PARTS;
    const u16* from[BLOCKS];
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
        const int token = first_token + 8 * m + g;
        from[m] = token < num_tokens ? x + (u64)token * COLUMNS + 8 * t : 0;
    }
    const int first = own * WARP_TILES, column = first_part * WARP_TILES + first;
    if (column >= COLUMN_TILES) return;
#pragma unroll
    for (int base = 0; base < WARP_TILES; base += LOADS_AT_ONCE * TEAMS) {
        ActivationTile part[LOADS_AT_ONCE][BLOCKS];
#pragma unroll
        for (int i = 0; i < LOADS_AT_ONCE; ++i) {
            const int tile = base + i * TEAMS + team;
            if (tile < WARP_TILES) load_activation_tile<BLOCKS>(part[i], from, t, column + tile, COLUMNS);
        }
#pragma unroll
        for (int i = 0; i < LOADS_AT_ONCE; ++i) {
            const int tile = base + i * TEAMS + team;
            if (tile >= WARP_TILES) continue;
#pragma unroll
            for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    rows[(((first + tile) * BLOCKS + m) * 2 + h) * WARP + lane] = part[i][m].half[h];
        }
    }
}

// All of the warp's tiles of the rows.
__device__ __forceinline__ void load_rows(ActivationTile (&held)[WARP_TILES][BLOCKS], const u16* x,
                                          int first_token, int num_tokens, int part, int lane) {
    const u16* from[BLOCKS];
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
        const int token = first_token + 8 * m + (lane >> 2);
        from[m] = token < num_tokens ? x + (u64)token * COLUMNS + 8 * (lane & 3) : 0;
    }
#pragma unroll
    for (int i = 0; i < WARP_TILES; ++i)
        load_activation_tile<BLOCKS>(held[i], from, lane & 3, part * WARP_TILES + i, COLUMNS);
}

// The sum over all parts, in their order. `totals` of one row tile.
__device__ __forceinline__ float sum_of_parts(const float* totals, int token, int row) {
    const float* own = totals + token * TOKEN_STRIDE + row;
    float sum = own[0];
#pragma unroll
    for (int part = 1; part < K_WARPS; ++part) sum += own[part * TOTAL_SIZE];
    return sum;
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP, 1) BLOCKS_OF_CLUSTER
stream_nvfp4(u16* __restrict__ out, const u16* x, const uint4* __restrict__ codes,
             const u32* __restrict__ scales, const float* __restrict__ row_scales, int num_tokens,
             int each, int more, int num_outputs) {
    __shared__ float tile_scales[2 * TURN];
    const int lane = __shfl_sync(FULL_MASK, threadIdx.x & (WARP - 1), threadIdx.x);
    const int warp = __shfl_sync(FULL_MASK, (int)threadIdx.x / WARP, 0);
    const int g = lane >> 2, t = lane & 3, team = warp / PARTS;
    const int cluster = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
    const int row_tile = cluster * each + min(cluster, more), count = each + (cluster < more);
    const int part = rank * PARTS + warp % PARTS, first_token = blockIdx.y * 16;
    const bool in_matrix = K_WARPS % CLUSTER == 0 || part < K_WARPS;
    uint4* ring = stream_memory + warp * STAGES * STAGE_VECTORS;
    uint4* rows = stream_memory + WARPS * STAGES * STAGE_VECTORS;
    float* totals = (float*)(rows + !HELD * PARTS * WARP_TILES * BLOCKS * 2 * WARP);
    allow_next_kernel();
    const u64 start = (u64)(row_tile + team * ROW_TILES) * COLUMN_TILES + part * WARP_TILES;
    StreamRequests next = {codes + start * TILE_CODE_VECTORS + lane,
                           (const uint4*)scales + start * (TILE_SCALE_WORDS / 4)
                               + lane / SCALE_LANES * (COLUMN_TILES * TILE_SCALE_WORDS / 4)
                               + lane % SCALE_LANES,
                           0, in_matrix ? count - team * ROW_TILES : 0};
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        request_stage(ring + i * STAGE_VECTORS, next, lane);
        commit_copies();
    }
    u32 own_scale = 0;                   // of the turn's row tiles
    const float* own_scales = row_scales + 2 * row_tile + threadIdx.x;
    if (threadIdx.x < 2 * min(count, TURN)) own_scale = load_activation_word(own_scales);
    arrive_at_cluster();                 // so that others may write here
    wait_for_previous_kernel();

#if HELD
    ActivationTile held[WARP_TILES][BLOCKS];
    if (in_matrix) load_rows(held, x, first_token, num_tokens, part, lane);
#else
    place_rows(rows, x, first_token, num_tokens, rank * PARTS, warp, lane);
    if (TEAMS > 1) __syncthreads();
    else __syncwarp();
    const uint4* own_rows = rows + warp % PARTS * (WARP_TILES * BLOCKS * 2 * WARP) + lane;
#endif
    PeerAddress peers[2];                // where the totals of even and of odd columns go
#pragma unroll
    for (int j = 0; j < 2; ++j)
        peers[j] = address_in_peer(totals + part * TOTAL_SIZE + 2 * t / CLUSTER * TOKEN_STRIDE + g,
                                   (2 * t + j) % CLUSTER);

    int slot = 0, free = STAGES - 1;
#pragma unroll 1
    for (int turn = 0; turn < count; turn += TURN) {
        const int first = turn + team * ROW_TILES;
        if (turn > 0 && threadIdx.x < 2 * min(count - turn, TURN))
            own_scale = load_activation_word(own_scales + 2 * turn);
        float acc[ROW_TILES][2][BLOCKS][4] = {};
        if (first < count && in_matrix) {
#pragma unroll(HELD ? WARP_STAGES : 1)
            for (int tile = 0; tile < WARP_TILES; tile += STAGE_TILES) {
                wait_for_copies<STAGES - 2>();
                __syncwarp();            // all lanes' copies, and all have read the free stage
                request_stage(ring + free * STAGE_VECTORS, next, lane);
                commit_copies();
                const uint4* stage = ring + slot * STAGE_VECTORS;
#pragma unroll
                for (int i = 0; i < STAGE_TILES; ++i) {
                    ActivationTile activations[BLOCKS];
#pragma unroll
                    for (int m = 0; m < BLOCKS; ++m)
#if HELD
                        activations[m] = held[tile + i][m];
#else
#pragma unroll
                        for (int h = 0; h < 2; ++h)
                            activations[m].half[h] =
                                own_rows[(((tile + i) * BLOCKS + m) * 2 + h) * WARP];
#endif
#pragma unroll
                    for (int r = 0; r < ROW_TILES; ++r) {        // what is not there is not used
                        WeightTile w;
                        w.codes = stage[(r * STAGE_TILES + i) * TILE_CODE_VECTORS + lane];
                        w.scales = ((const u32*)(stage + STAGE_CODES))[
                            (r * STAGE_TILES + i) * TILE_SCALE_WORDS + (lane >> 1)];
                        multiply_tile<BLOCKS>(acc[r], w, activations);
                    }
                }
                free = slot;
                slot = slot == STAGES - 1 ? 0 : slot + 1;
            }
        }
        if (CLUSTER > 1) wait_for_cluster();         // all have begun, or read the totals before
        else if (turn > 0) __syncthreads();
        if (threadIdx.x < 2 * TURN) tile_scales[threadIdx.x] = __uint_as_float(own_scale);
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r)
            if (in_matrix && first + r < count)
#pragma unroll
                for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        store_in_peer(peers[j & 1], (team * ROW_TILES + r) * K_WARPS * TOTAL_SIZE
                                          + ((j & 1) + 8 * m) / CLUSTER * TOKEN_STRIDE + 8 * (j >> 1),
                                      acc[r][0][m][j] + acc[r][1][m][j]);
        if (CLUSTER > 1) arrive_at_cluster(), wait_for_cluster();
        else __syncthreads();

        const int rows_out = GEGLU ? 8 : 16, outputs = rows_out * TOKENS;
        for (int i = threadIdx.x; i < min(count - turn, TURN) * outputs; i += WARPS * WARP) {
            const int r = i / outputs, own = i % outputs / rows_out, row = i % rows_out;
            const int token = first_token + own * CLUSTER + rank;
            const int column = (row_tile + turn + r) * rows_out + row;
            if (token >= num_tokens || column >= num_outputs) continue;
            const float* of_tile = totals + r * K_WARPS * TOTAL_SIZE;
            float value = sum_of_parts(of_tile, own, row) * tile_scales[2 * r + (row >> 3)];
#if GEGLU
            const float up = sum_of_parts(of_tile, own, row + 8) * tile_scales[2 * r + 1];
            value = gelu_tanh(rounded_to_bf16(value)) * rounded_to_bf16(up);
#endif
            out[(u64)token * num_outputs + column] = to_bf16(value);
        }
        if (CLUSTER > 1 && turn + TURN < count) arrive_at_cluster();
    }
}
