// SPDX-License-Identifier: Apache-2.0
// One entry point per instruction-set file. Everything such a file defines lies in the namespace of
// its instruction set: the test in tests/isa reads from a symbol's name which registers it may use.
#ifndef KT_KERNELS_CPU_GEMM_GEMM_ISA_H_
#define KT_KERNELS_CPU_GEMM_GEMM_ISA_H_

#include "kernels/cpu/gemm/gemm_args.h"

namespace kt {

namespace scalar {
void GemmBf16(const GemmArgs& args, int tile_begin, int tile_end) noexcept;
void GemmF32(const GemmArgs& args, int tile_begin, int tile_end) noexcept;
}  // namespace scalar

namespace avx2 {
void GemmBf16(const GemmArgs& args, int tile_begin, int tile_end) noexcept;
void GemmF32(const GemmArgs& args, int tile_begin, int tile_end) noexcept;
}  // namespace avx2

namespace avx512f {
void GemmBf16(const GemmArgs& args, int tile_begin, int tile_end) noexcept;
void GemmF32(const GemmArgs& args, int tile_begin, int tile_end) noexcept;
}  // namespace avx512f

namespace avx512bf16 {
void GemmBf16(const GemmArgs& args, int tile_begin, int tile_end) noexcept;
}  // namespace avx512bf16

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_GEMM_ISA_H_
