// SPDX-License-Identifier: Apache-2.0
// What the machine can do at best, to hold kernels against: multiply-add loops on registers and a
// plain read of memory. Stateless; callable from any thread.
#ifndef KT_KERNELS_CPU_MACHINE_PEAK_MACHINE_PEAK_H_
#define KT_KERNELS_CPU_MACHINE_PEAK_MACHINE_PEAK_H_

#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// Factors of the products; sums are 32 bits wide.
enum class Multiply { kFp32, kBf16, kInt8 };

// Runs `rounds` rounds of independent multiply-adds with the fastest instruction that the row has
// for the kind (fp32 stands in where it has none) and returns the operations done, two a
// multiply-add. The result that is added to *sum keeps the compiler from dropping them. `isa` must
// be supported by this CPU. Tiles are not measured: kAmx counts what kAvx512Bf16 does.
double MultiplyAdds(Multiply kind, Isa isa, long rounds, float* sum) noexcept;

// Reads [data, data + bytes) once, as 1, 2 or 4 runs side by side: which of them is fastest differs
// between processors. data is aligned to 64; nothing is prefetched, that is left to the hardware.
void ReadMemory(const char* data, long bytes, int streams, float* sum) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_MACHINE_PEAK_MACHINE_PEAK_H_
