// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// geglu: out = gelu_tanh(gate) * up, where no product before it does that itself (bf16 weights).
//
// out (T, I) bf16; gate_up (T, 2 I) bf16, gate first
//
// Bytes moved: 6 T I. Bound by memory, by the latency of one read for few rows.
// One thread makes 8 numbers; blockIdx.y is the row.
//
// PRECOND: I a multiple of 8; out and gate_up 16-byte aligned.
// Constants: I.

#define THREADS 128

extern "C" __global__ void __launch_bounds__(THREADS)
geglu(u16* __restrict__ out, const u16* gate_up) {
    const int column = (blockIdx.x * THREADS + threadIdx.x) * 8;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= I) return;
    const u16* from = gate_up + (u64)blockIdx.y * (2 * I) + column;
    const uint4 gate = load_activations(from), up = load_activations(from + I);
    const u32 gates[4] = {gate.x, gate.y, gate.z, gate.w}, ups[4] = {up.x, up.y, up.z, up.w};
    u32 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        pairs[i] = pack_bf16(gelu_tanh(bf16_low(gates[i])) * bf16_low(ups[i]),
                             gelu_tanh(bf16_high(gates[i])) * bf16_high(ups[i]));
    }
    *(uint4*)(out + (u64)blockIdx.y * I + column) =
        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}
