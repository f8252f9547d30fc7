// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CPU_SIMD_DISPATCH_H_
#define KT_KERNELS_CPU_SIMD_DISPATCH_H_

#include "kernels/cpu/features/cpu_features.h"

// Defines Name(Isa, const Args&), which runs the row of that instruction set, and declares the
// rows: Name is compiled by a kt_isa_library into the namespaces scalar, avx2 and avx512f.
#define KT_DEFINE_ISA_DISPATCH(Name, Args)        \
  namespace scalar {                              \
  void Name(const Args& args) noexcept;           \
  }                                               \
  namespace avx2 {                                \
  void Name(const Args& args) noexcept;           \
  }                                               \
  namespace avx512f {                             \
  void Name(const Args& args) noexcept;           \
  }                                               \
  void Name(Isa isa, const Args& args) noexcept { \
    switch (isa) {                                \
      case Isa::kScalar:                          \
        return scalar::Name(args);                \
      case Isa::kAvx2:                            \
        return avx2::Name(args);                  \
      case Isa::kAvx512f:                         \
      case Isa::kAvx512Bf16:                      \
      case Isa::kAmx:                             \
        return avx512f::Name(args);               \
    }                                             \
  }

#endif  // KT_KERNELS_CPU_SIMD_DISPATCH_H_
