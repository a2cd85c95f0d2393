// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// fetch_ahead.cuh on a CPU: nothing is fetched, but what was asked for is kept, and what lies
// beyond the arrays that the test named is counted.

#define __grid_constant__

namespace emulator {

static std::vector<u64> fetches;         // address and bytes of each
static std::vector<u64> fetchable;       // beginning and end of each array
static int stray_fetches;

}  // namespace emulator

extern "C" void allow_fetches(const u64* bounds, int count) {
    emulator::fetchable.assign(bounds, bounds + 2 * count);
    emulator::fetches.clear();
    emulator::stray_fetches = 0;
}

extern "C" int num_fetches() { return (int)emulator::fetches.size() / 2; }
extern "C" int num_stray_fetches() { return emulator::stray_fetches; }

extern "C" void copy_fetches(u64* to) {
    std::copy(emulator::fetches.begin(), emulator::fetches.end(), to);
}

inline void fetch_piece(const u8* from, u32 num_bytes) {
    const u64 start = (u64)from, end = start + num_bytes;
    bool inside = start % 16 == 0 && num_bytes % 16 == 0 && num_bytes > 0;
    bool found = false;
    for (size_t i = 0; i < emulator::fetchable.size(); i += 2)
        found = found || (emulator::fetchable[i] <= start && end <= emulator::fetchable[i + 1]);
    emulator::stray_fetches += !(inside && found);
    emulator::fetches.push_back(start);
    emulator::fetches.push_back(num_bytes);
}
