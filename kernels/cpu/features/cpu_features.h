// SPDX-License-Identifier: Apache-2.0
// What this CPU can run, read from CPUID and XGETBV, and the row of every kernel table that follows
// from it.
#ifndef KT_KERNELS_CPU_FEATURES_CPU_FEATURES_H_
#define KT_KERNELS_CPU_FEATURES_CPU_FEATURES_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace kt {

// Rows of the kernel tables, worst first. A row stands for all flags its files are compiled with
// (cmake/isa.cmake).
enum class Isa { kScalar, kAvx2, kAvx512f, kAvx512Bf16, kAmx };
inline constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512f, Isa::kAvx512Bf16,
                                   Isa::kAmx};

// "scalar", "avx2", "avx512f", "avx512bf16", "amx": the values of KT_FORCE_ISA
const char* IsaName(Isa isa);

// Whether a row of activations has the same bits in products alone and among others. kAmx computes
// few rows as kAvx512Bf16 does and many by tiles, whose sums have another order.
bool BatchInvariant(Isa isa);

// True if both the CPU and the operating system (saved registers) allow the row. For kAmx, asks the
// kernel to let this process use tile registers.
bool IsaSupported(Isa isa);

// Whether the environment variable KT_FORCE_ISA names a row.
bool IsaForced();

// The best supported batch-invariant row, or the one that KT_FORCE_ISA names.
// InvalidArgument: an unknown name. Unimplemented: a row that this CPU lacks (the message
// names the missing flags).
absl::StatusOr<Isa> SelectIsa();

// Flags that the kernels use or will use, in display order, with their presence ("avx512_bf16",
// true).
std::vector<std::pair<std::string, bool>> CpuFlagList();

// The processor's own name ("AMD EPYC 9554 64-Core Processor"), "unknown" where CPUID gives none.
std::string CpuModelName();

}  // namespace kt

#endif  // KT_KERNELS_CPU_FEATURES_CPU_FEATURES_H_
