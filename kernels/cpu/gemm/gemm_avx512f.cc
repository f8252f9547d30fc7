// SPDX-License-Identifier: Apache-2.0
// AVX-512 F and BW. Registers (32), at 6 tokens x 4 tiles: 24 sums, 4 weights, 1 broadcast x, 1
// mask.
#include "kernels/cpu/gemm/gemm_blocked.h"
#include "kernels/cpu/gemm/gemm_isa.h"
#include "kernels/cpu/gemm/gemm_widened.h"
#include "kernels/cpu/gemm/lanes_avx512.h"

namespace kt::avx512f {
namespace {
struct File {};
}  // namespace

KT_DEFINE_PRODUCTS(Widened<Lanes512<File>>)

}  // namespace kt::avx512f
