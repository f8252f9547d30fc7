// SPDX-License-Identifier: Apache-2.0
// What the machine can do at best, to hold kernels against: multiply-add loops on registers and a
// plain read of memory.
#ifndef KT_BENCHMARKS_KERNELS_MACHINE_PEAK_H_
#define KT_BENCHMARKS_KERNELS_MACHINE_PEAK_H_

namespace kt {

// Runs `rounds` rounds of independent multiply-adds of one instruction set and returns the
// floating-point operations done; the sum keeps the compiler from dropping them. avx512bf16 counts
// vdpbf16ps, the others fp32.
namespace scalar {
double MultiplyAdds(long rounds, float* sum);
}
namespace avx2 {
double MultiplyAdds(long rounds, float* sum);
}
namespace avx512f {
double MultiplyAdds(long rounds, float* sum);
}
namespace avx512bf16 {
double MultiplyAdds(long rounds, float* sum);
}

// Reads the memory once, as 1, 2 or 4 runs side by side: which of them is fastest differs between
// processors.
void ReadMemory(const char* data, long bytes, int streams, float* sum);

}  // namespace kt

#endif  // KT_BENCHMARKS_KERNELS_MACHINE_PEAK_H_
