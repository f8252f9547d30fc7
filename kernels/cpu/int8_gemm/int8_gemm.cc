// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8_gemm/int8_gemm.h"

#include "kernels/cpu/int8_gemm/int8_gemm_isa.h"

namespace kt {
namespace {

constexpr Int8GemmKernels kRows[] = {
    {Isa::kScalar, &scalar::MultiplyInt8, &scalar::MultiplyInt4},
    {Isa::kAvx2, &avx2::MultiplyInt8, &avx2::MultiplyInt4},
    {Isa::kAvx512f, &avx512f::MultiplyInt8, &avx512f::MultiplyInt4},
    {Isa::kAvx512Bf16, &avx512bf16::MultiplyInt8, &avx512bf16::MultiplyInt4},
};

}  // namespace

const Int8GemmKernels& SelectInt8Gemm(Isa isa) { return kRows[static_cast<int>(isa)]; }

void Int8Gemm(const Int8GemmKernels& kernels, const Int8GemmArgs& args, int tile_begin,
              int tile_end) noexcept {
  const PackedMatrix& w = args.w;
  const auto multiply =
      w.format.code == PackedCode::kInt8 ? kernels.multiply_int8 : kernels.multiply_int4;
  multiply({.x = args.x.codes,
            .x_stride = args.x.stride,
            .x_scales = args.x.scales,
            .x_sums = args.x.sums,
            .tokens = args.tokens,
            .w = w.data,
            .tile_bytes = static_cast<int64_t>(PackedTileBytes(w.k, w.format)),
            .units = static_cast<int>(PackedCodeBytes(w.k, w.format.code) / kUnitBytes),
            .n = w.n,
            .y = args.y,
            .y_stride = args.y_stride},
           tile_begin, tile_end);
}

}  // namespace kt
