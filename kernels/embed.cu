// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// embed: hidden[t] = bf16(table[token_ids[t]] * scale), the start of the residual stream.
//
// hidden (T, H) f32; token_ids (T) i32, -1 for padding rows, which become zeros; table (V, H) bf16
// scale: sqrt(H) rounded to bf16
//
// Bytes moved: T H (2 + 4). Bound by the latency of one gather.
// One block per row, 8 numbers per thread.
//
// PRECOND: H a multiple of 8 and at most 8,192; hidden and table 16-byte aligned; ids below V.
// Constants: H.

#define THREADS ((H / 8 + WARP - 1) / WARP * WARP)

extern "C" __global__ void __launch_bounds__(THREADS)
embed(float* __restrict__ hidden, const int* token_ids, const u16* __restrict__ table,
      float scale) {
    const int column = threadIdx.x * 8;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= H) return;
    const int token = (int)load_activation_word(token_ids + blockIdx.x);
    uint4 row = make_uint4(0, 0, 0, 0);
    if (token >= 0) row = *(const uint4*)(table + (u64)token * H + column);
    const u32 pairs[4] = {row.x, row.y, row.z, row.w};
    float x[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = rounded_to_bf16(bf16_low(pairs[i]) * scale);
        x[2 * i + 1] = rounded_to_bf16(bf16_high(pairs[i]) * scale);
    }
    float4* to = (float4*)(hidden + (u64)blockIdx.x * H + column);
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[1] = make_float4(x[4], x[5], x[6], x[7]);
}
