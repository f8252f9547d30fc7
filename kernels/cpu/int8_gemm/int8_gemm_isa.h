// SPDX-License-Identifier: Apache-2.0
// The entry points of the instruction-set files: W of PackedCode::kInt8 or kInt4. Everything such a
// file defines lies in the namespace of its instruction set: the test in tests/isa reads from a
// symbol's name which registers it may use.
#ifndef KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_ISA_H_
#define KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_ISA_H_

#include "kernels/cpu/int8_gemm/int8_gemm_args.h"

namespace kt {

namespace scalar {
void MultiplyInt8(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
void MultiplyInt4(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
}  // namespace scalar

namespace avx2 {
void MultiplyInt8(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
void MultiplyInt4(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
}  // namespace avx2

namespace avx512f {
void MultiplyInt8(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
void MultiplyInt4(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
}  // namespace avx512f

namespace avx512bf16 {
void MultiplyInt8(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
void MultiplyInt4(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
}  // namespace avx512bf16

}  // namespace kt

#endif  // KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_ISA_H_
