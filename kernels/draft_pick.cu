// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Around the choice of drafts, one entry each:
//   draft_accept          where a draft starts, from the tokens that a verify step just chose: the
//                         drafts that equal the target's own tokens are kept, in order, and the
//                         token after them is the newest
//   draft_confidence      shares[r, i] = sum over part i of exp((l - l[token r]) / temperature), and
//                         confidence[r] = 1 / (sum of shares[r]): the drafter's own probability
//
// token_ids, tokens, spans  of the verify step: (T) i32 inputs and choices, (B, 4) i32 {first row,
//              rows, position, 0}
// draft_ids    i32: entry b * ids_stride becomes the newest token of sequence b
// starts       (B) i32: its position; newest (B, 2) i32: both, for the host
// draft_spans  (B, 4) i32: {b, 1, position - 1, 0}, the last key
// records      (rows, RECORD bytes): the sampler's settings, of draft s of sequence b in row
//              b * row_stride + s * step_stride; the place that the token takes is set to
//              position + offset + s
// logits       (R, V) f32; tokens (R) i32, negative: none, confidence 0
// shares       (R, PARTS) f32; confidence (R) f32; tickets (R) u32, zeros before and behind it
//
// Bytes moved: 4 R V for the confidence, read from the L2 mostly. Bound by latency.
//
// PRECOND: V a multiple of 4, logits 16-byte aligned.
// Constants: RECORD, POSITION (its byte offset in a record), TEMPERATURE (the same), PARTS, a
// multiple of 32.

#include "tickets.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(32)
draft_accept(int* draft_ids, int* starts, int* newest, int* draft_spans, u8* records,
             const int* token_ids, const int* tokens, const int* spans, int ids_stride,
             int row_stride, int step_stride, int num_steps, int offset) {
    __shared__ int position;
    const int b = blockIdx.x;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (threadIdx.x == 0) {
        const int first = spans[4 * b], rows = spans[4 * b + 1];
        int kept = 0;
        while (kept + 1 < rows && (int)load_activation_word(tokens + first + kept)
                                      == (int)load_activation_word(token_ids + first + kept + 1)) {
            ++kept;
        }
        const int token = rows ? (int)load_activation_word(tokens + first + kept) : -1;
        position = rows ? spans[4 * b + 2] + kept + 1 : 0;
        draft_ids[b * ids_stride] = token;
        starts[b] = position;
        newest[2 * b] = token;
        newest[2 * b + 1] = position;
        draft_spans[4 * b] = b;
        draft_spans[4 * b + 1] = rows ? 1 : 0;
        draft_spans[4 * b + 2] = position - 1;
    }
    __syncthreads();
    for (int s = threadIdx.x; s < num_steps; s += 32) {
        *(int*)(records + (u64)(b * row_stride + s * step_stride) * RECORD + POSITION) =
            position + offset + s;
    }
}

// Grid: (PARTS, R). The block of a row that comes last adds the shares, in their order.
extern "C" __global__ void __launch_bounds__(THREADS)
draft_confidence(float* __restrict__ confidence, float* shares, u32* tickets, const float* logits,
                 const int* tokens, const u8* records, int vocab_size) {
    __shared__ float room[THREADS / WARP];
    __shared__ u32 ticket;
    const int r = blockIdx.y, vectors = vocab_size / 4;
    const float* row = logits + (u64)r * vocab_size;
    allow_next_kernel();
    wait_for_previous_kernel();
    const int token = (int)load_activation_word(tokens + r);
    const float temperature = *(const float*)(records + (u64)r * RECORD + TEMPERATURE);
    const float factor = 1.4426950408889634f / (temperature > 0.0f ? temperature : 1.0f);
    const float own = __uint_as_float(load_activation_word(row + max(token, 0)));
    float sum = 0.0f;
#pragma unroll 4
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < vectors; i += PARTS * THREADS) {
        const uint4 v = load_activations(row + 4 * i);
        sum += exp2f((__uint_as_float(v.x) - own) * factor)
               + exp2f((__uint_as_float(v.y) - own) * factor);
        sum += exp2f((__uint_as_float(v.z) - own) * factor)
               + exp2f((__uint_as_float(v.w) - own) * factor);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < THREADS / WARP; ++w) total += room[w];
        shares[r * PARTS + blockIdx.x] = total;
        ticket = take_ticket(tickets + r);
    }
    __syncthreads();
    if (ticket != PARTS - 1 || threadIdx.x >= WARP) return;
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < PARTS; i += WARP) all += load_result(shares + r * PARTS + i + threadIdx.x);
    all = warp_sum(all);
    if (threadIdx.x != 0) return;
    confidence[r] = token < 0 ? 0.0f : 1.0f / all;
    tickets[r] = 0;
}
