// SPDX-License-Identifier: Apache-2.0
// The loops behind MultiplyAdds, by instruction set.
#ifndef KT_KERNELS_CPU_MACHINE_PEAK_MULTIPLY_ADDS_H_
#define KT_KERNELS_CPU_MACHINE_PEAK_MULTIPLY_ADDS_H_

namespace kt {

namespace scalar {
double MultiplyFp32(long rounds, float* sum) noexcept;
}
namespace avx2 {
double MultiplyFp32(long rounds, float* sum) noexcept;
double MultiplyInt8(long rounds, float* sum) noexcept;
}  // namespace avx2
namespace avx512f {
double MultiplyFp32(long rounds, float* sum) noexcept;
double MultiplyInt8(long rounds, float* sum) noexcept;
}  // namespace avx512f
namespace avx512bf16 {
double MultiplyBf16(long rounds, float* sum) noexcept;
double MultiplyInt8(long rounds, float* sum) noexcept;
}  // namespace avx512bf16

}  // namespace kt

#endif  // KT_KERNELS_CPU_MACHINE_PEAK_MULTIPLY_ADDS_H_
