// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// An item of the experts' products with what becomes of its sums: geglu of gate-up's, down's as
// they are. moe_nvfp4.cu has the formulas.
//
// Constants: those of expert_items.cuh.

#include "expert_items.cuh"

__device__ __forceinline__ void fetch_line(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(p));
}

// What the block's items of the dense MLP read comes into the L2: nothing else can be read yet.
template <class Part>
__device__ __forceinline__ void fetch_dense(const Job<Part>& job) {
    const int first = job.share.first_dense * Part::column_tiles;
    const char* codes = (const char*)(job.work.dense.codes + first * TILE_CODE_VECTORS);
    const char* scales = (const char*)(job.work.dense.scales + first * TILE_SCALE_WORDS);
    const int num_tiles = job.share.num_dense * Part::column_tiles;
    for (int i = threadIdx.x; i < num_tiles * (TILE_CODE_VECTORS / 8); i += THREADS)
        fetch_line(codes + i * 128);
    for (int i = threadIdx.x; i < num_tiles * TILE_SCALE_WORDS / 32; i += THREADS)
        fetch_line(scales + i * 128);
}

// What gate-up reads and writes.
struct GateUpRows {
    u16 *inner, *dense_inner;
    const u16 *x, *dense_x;
};

// One item for the up to 8 * NB rows of its unit.
template <class Part, int NB, class Jobs>
__device__ __forceinline__ void gate_up_item(const GateUpRows& to, const Place& at, int count,
                                             int num_row_tiles, Halves& halves, Ring& ring,
                                             const Jobs& jobs, const Routing& routing, int lane) {
    const int g = lane >> 2, width = num_row_tiles * 8;
    const bool dense = at.unit < DENSE;
    const u16* rows[NB];
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        // a column without a row has any other's: nobody reads what comes of it
        const u32 row = row_of(routing, at.unit, min(8 * m + g, count - 1));
        rows[m] = (dense ? to.dense_x + row * Part::columns : to.x + row / CHOSEN * Part::columns)
            + first_column<Part>(lane);
    }
    const auto total = multiply_item<Part, NB>(halves, ring, rows, jobs, routing, lane);
#pragma unroll
    for (int m = 0; m < NB; ++m) {
#pragma unroll
        for (int i = 0; i < total.own; ++i) {
            const int n = row_of_sum<Part>(m, i, lane);
            if (n >= count) continue;
            const float gate = total.of[m][i].x * total.scale.x;
            const float up = total.of[m][i].y * total.scale.y;
            const u16 value = to_bf16(gelu_tanh(rounded_to_bf16(gate)) * rounded_to_bf16(up));
            const u32 number = row_of(routing, at.unit, n), column = at.tile * 8 + g;
            if (dense) to.dense_inner[(number * DENSE + at.unit) * width + column] = value;
            else to.inner[number * width + column] = value;
        }
    }
}

// What down reads and writes.
struct DownRows {
    u16* results;
    float* dense_parts;
    const u16 *inner, *dense_inner;
    int num_outputs;
};

// One item for the up to 8 * NB rows of its unit.
template <class Part, int NB, class Room, class Jobs>
__device__ __forceinline__ void down_item(const DownRows& to, const Place& at, int count,
                                          Room& halves, Ring& ring, const Jobs& jobs,
                                          const Routing& routing, int lane) {
    const int g = lane >> 2;
    const bool dense = at.unit < DENSE;
    const u16* rows[NB];
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        // a column without a row has any other's: nobody reads what comes of it
        const u32 row = row_of(routing, at.unit, min(8 * m + g, count - 1));
        rows[m] = (dense ? to.dense_inner + (row * DENSE + at.unit) * Part::columns
                         : to.inner + row * Part::columns) + first_column<Part>(lane);
    }
    const auto total = multiply_item<Part, NB>(halves, ring, rows, jobs, routing, lane);
#pragma unroll
    for (int m = 0; m < NB; ++m) {
#pragma unroll
        for (int i = 0; i < total.own; ++i) {
            const int n = row_of_sum<Part>(m, i, lane);
            if (n >= count) continue;
            const u32 number = row_of(routing, at.unit, n);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = at.tile * TILE_ROWS + g + 8 * half;
                const float value = half ? total.of[m][i].y * total.scale.y
                                         : total.of[m][i].x * total.scale.x;
                if (row >= to.num_outputs) continue;
                if (dense)
                    to.dense_parts[(number * DENSE + at.unit) * to.num_outputs + row] = value;
                else
                    to.results[number * to.num_outputs + row] = to_bf16(value);
            }
        }
    }
}
