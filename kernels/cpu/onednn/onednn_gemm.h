// SPDX-License-Identifier: Apache-2.0
// Products by oneDNN: the only way to the tile registers of AMX, and a yardstick for our own.
//
// A block of columns of up to 16 tiles of weights is decoded to a panel; 32 rows of x at a time (24
// of fp32), the last ones filled up with zeros, are multiplied by it in one primitive, and the sums
// folded into y by our own code, scale and all. So every primitive has one of few shapes, made once
// per thread, and a row's bits do not depend on the rows around it. One thread computes: primitives
// are made and run with OpenMP's number of threads set to 1 in the calling thread, which spawns
// none.
#ifndef KT_KERNELS_CPU_ONEDNN_ONEDNN_GEMM_H_
#define KT_KERNELS_CPU_ONEDNN_ONEDNN_GEMM_H_

#include "absl/status/status.h"
#include "kernels/cpu/gemm/gemm_args.h"

namespace kt {

// What weights and x are multiplied as.
enum class OneDnnPanel {
  kF32,   // bf16 or fp32 x; CPUs with AVX2
  kBf16,  // bf16 x; CPUs with the row avx512bf16: AMX where they have it, else vdpbf16ps
};

// OK if products with such panels can run. Unavailable: oneDNN is not installed. Unimplemented: the
// CPU has no instructions for them. Thread-safe; loads oneDNN (2 ms) when first called.
absl::Status OneDnnReady(OneDnnPanel panel);

// The product for a code; OneDnnReady(panel) must be OK. Sums are as ProductFn says, but within a
// block of columns in oneDNN's order; kBf16 too is summed in blocks (of 512 columns), which are
// then added up. A thread's first call takes about 1 MB that it keeps, the first of a shape some
// 0.1 to 5 ms. Aborts where memory for that is lacking.
ProductFn OneDnnProduct(OneDnnPanel panel, PackedCode code);

}  // namespace kt

#endif  // KT_KERNELS_CPU_ONEDNN_ONEDNN_GEMM_H_
