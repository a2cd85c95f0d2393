// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Which block of some comes last, so that it can go on with what all of them wrote.

// By one thread between two barriers: what its block wrote is seen by whoever takes a later ticket,
// and its block sees what those before it wrote. One instruction does both: fences around the
// addition would wait for the memory twice.
__device__ __forceinline__ u32 take_ticket(u32* counter) {
    u32 ticket;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(ticket) : "l"(counter) : "memory");
    return ticket;
}
