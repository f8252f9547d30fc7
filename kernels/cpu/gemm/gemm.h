// SPDX-License-Identifier: Apache-2.0
// Products of activations with packed BF16 weights: one table row per instruction set. Allocates
// nothing, starts no threads.
#ifndef KT_KERNELS_CPU_GEMM_GEMM_H_
#define KT_KERNELS_CPU_GEMM_GEMM_H_

#include "common/base/parallel.h"
#include "kernels/cpu/features/cpu_features.h"
#include "kernels/cpu/gemm/gemm_args.h"
#include "kernels/cpu/gemm/packed_bf16.h"

namespace kt {

// Accumulation is fp32 in every row. Weights are used exactly; bf16_x multiplies bf16 pairs
// exactly, f32_x widens weights to fp32. avx512bf16's bf16_x treats subnormal inputs and results as
// zero, as its instruction does.
struct GemmKernels {
  Isa isa;
  GemmFn bf16_x;
  GemmFn f32_x;
};

// The row of `isa`, which must be supported by this CPU.
const GemmKernels& SelectGemm(Isa isa);

// All columns of y on the threads of `parallel`, each reading long runs of weights. Bits as GemmFn
// promises.
void LinearParallel(const GemmKernels& kernels, bool x_is_bf16, const GemmArgs& args,
                    Parallel& parallel) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_GEMM_H_
