// SPDX-License-Identifier: Apache-2.0
// The entry points of the instruction-set files. Everything such a file defines lies in the
// namespace of its instruction set: the test in tests/isa reads from a symbol's name which
// registers it may use.
#ifndef KT_KERNELS_CPU_GEMM_GEMM_ISA_H_
#define KT_KERNELS_CPU_GEMM_GEMM_ISA_H_

#include "kernels/cpu/gemm/gemm_args.h"

namespace kt {

namespace scalar {
void MultiplyBf16(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
void MultiplyF32(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
void DecodeFp8E4m3(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
void DecodeInt8(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
void DecodeInt4(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
void DecodeFp4E2m1(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
}  // namespace scalar

namespace avx2 {
void MultiplyBf16(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
void MultiplyF32(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
void DecodeFp8E4m3(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
void DecodeInt8(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
void DecodeInt4(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
void DecodeFp4E2m1(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
}  // namespace avx2

namespace avx512f {
void MultiplyBf16(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
void MultiplyF32(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
void DecodeFp8E4m3(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
void DecodeInt8(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
void DecodeInt4(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
void DecodeFp4E2m1(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
}  // namespace avx512f

namespace avx512bf16 {
void MultiplyBf16(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept;
void DecodeFp8E4m3(const uint8_t* codes, int pairs, uint8_t* out) noexcept;
}  // namespace avx512bf16

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_GEMM_ISA_H_
