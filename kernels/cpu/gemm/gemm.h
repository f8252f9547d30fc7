// SPDX-License-Identifier: Apache-2.0
// Products of activations with packed weights of any format: one table row per instruction set, one
// flow for all of them. Allocates nothing, starts no threads.
#ifndef KT_KERNELS_CPU_GEMM_GEMM_H_
#define KT_KERNELS_CPU_GEMM_GEMM_H_

#include "common/base/parallel.h"
#include "kernels/cpu/features/cpu_features.h"
#include "kernels/cpu/gemm/gemm_args.h"
#include "kernels/cpu/gemm/packed_matrix.h"
#include "kernels/cpu/onednn/onednn_gemm.h"

namespace kt {

// Accumulation is fp32 in every row. Weights are used exactly; bf16 x multiplies bf16 pairs
// exactly, fp32 x widens weights to fp32. avx512bf16's products with bf16 x treat subnormal inputs
// and results as zero, as its instruction does. amx multiplies bf16 x of more than kFewTokens
// tokens by oneDNN's tile kernels, the rest as avx512bf16 does. The function for a code: see
// ProductFn.
struct GemmKernels {
  Isa isa;
  ProductFn bf16_x[kPackedCodes], f32_x[kPackedCodes];  // kBf16x2: that of kBf16, for each plane
};

// Products of so many tokens read weights about as fast as memory gives them: tiles gain nothing.
inline constexpr int kFewTokens = 16;

// OK if the row of `isa` can run; kAmx needs oneDNN beside the CPU (see OneDnnReady).
absl::Status GemmReady(Isa isa);

// The row of `isa`, for which GemmReady must be OK.
const GemmKernels& SelectGemm(Isa isa);

// oneDNN for all products, whatever the number of tokens, to compare with: OneDnnReady(panel) must
// be OK. Products with fp32 x exist for kF32 alone. `isa` is that of the code around them.
GemmKernels OneDnnGemm(OneDnnPanel panel);

// y = x Wᵀ; w.bias is not added. The caller owns all memory; y may not overlap x or w.
struct GemmArgs {
  const void* x;     // [tokens, w.k], bf16 or fp32
  int64_t x_stride;  // elements from row to row
  int tokens;        // >= 0
  PackedMatrix w;    // n, k >= 1
  float* y;          // [tokens, w.n]
  int64_t y_stride;  // elements from row to row, >= w.n
};

// Computes columns [16 * tile_begin, min(n, 16 * tile_end)) of y, and writes no other. Thread-safe
// on disjoint tile ranges. An output's bits depend on the ISA, its x row and its w row only: not on
// tokens, on its position among them, on the tile range or on blocking; except for kAmx, where few
// tokens have other bits than many. See ProductFn for the order of additions.
void Gemm(const GemmKernels& kernels, bool x_is_bf16, const GemmArgs& args, int tile_begin,
          int tile_end) noexcept;

// All columns of y on the threads of `parallel`, each reading long runs of weights. The same bits.
void LinearParallel(const GemmKernels& kernels, bool x_is_bf16, const GemmArgs& args,
                    Parallel& parallel) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_GEMM_H_
