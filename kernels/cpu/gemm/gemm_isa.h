// SPDX-License-Identifier: Apache-2.0
// The entry points of the instruction-set files. Everything such a file defines lies in the
// namespace of its instruction set: the test in tests/isa reads from a symbol's name which
// registers it may use.
#ifndef KT_KERNELS_CPU_GEMM_GEMM_ISA_H_
#define KT_KERNELS_CPU_GEMM_GEMM_ISA_H_

#include "kernels/cpu/gemm/gemm_args.h"

namespace kt {

#define KT_GEMM_ROW(isa)                                                               \
  namespace isa {                                                                      \
  void ProductBf16(const ProductArgs& args, int tile_begin, int tile_end) noexcept;    \
  void ProductFp8E4m3(const ProductArgs& args, int tile_begin, int tile_end) noexcept; \
  void ProductInt8(const ProductArgs& args, int tile_begin, int tile_end) noexcept;    \
  void ProductInt4(const ProductArgs& args, int tile_begin, int tile_end) noexcept;    \
  void ProductFp4E2m1(const ProductArgs& args, int tile_begin, int tile_end) noexcept; \
  }
KT_GEMM_ROW(scalar)
KT_GEMM_ROW(avx2)
KT_GEMM_ROW(avx512f)
KT_GEMM_ROW(avx512bf16)  // bf16 x only
#undef KT_GEMM_ROW

#define KT_GEMM_DECODE(isa)                                                                       \
  namespace isa {                                                                                 \
  void DecodeBf16(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) noexcept;    \
  void DecodeFp8E4m3(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) noexcept; \
  void DecodeInt8(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) noexcept;    \
  void DecodeInt4(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) noexcept;    \
  void DecodeFp4E2m1(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) noexcept; \
  }
KT_GEMM_DECODE(avx2)
KT_GEMM_DECODE(avx512bf16)
#undef KT_GEMM_DECODE

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_GEMM_ISA_H_
