// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CPU_FEATURES_CPU_FEATURES_H_
#define KT_KERNELS_CPU_FEATURES_CPU_FEATURES_H_

namespace kt {

// Rows of the kernel tables, each a superset of the one before.
enum class Isa { kScalar, kAvx2, kAvx512f, kAvx512Bf16 };

}  // namespace kt

#endif  // KT_KERNELS_CPU_FEATURES_CPU_FEATURES_H_
