// SPDX-License-Identifier: Apache-2.0
// Whether a worker multiplies many rows of bf16 activations by AMX tiles (oneDNN) or by vectors.
#ifndef KT_WORKER_KERNEL_CHOICE_H_
#define KT_WORKER_KERNEL_CHOICE_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu/features/cpu_features.h"
#include "kernels/cpu/gemm/gemm.h"

namespace kt {

struct KernelOptions {
  Isa selected;        // by SelectIsa
  bool deterministic;  // --deterministic
  bool bf16;           // activations
  PackedMatrix like;   // what is multiplied most: k and format count, data is not read
};

struct KernelChoice {
  Isa isa;
  std::string reason;  // what was measured, or why it was not; empty where there is no choice
};

// kAmx only with deterministic off, on a CPU that has it, if KT_FORCE_ISA does not name another row
// and if it is the faster one on one thread (some 10 ms). InvalidArgument: KT_FORCE_ISA=amx with
// deterministic on. Unavailable, DataLoss: KT_FORCE_ISA=amx and oneDNN is absent, or computes
// wrongly; where AMX is not forced the reason says so.
absl::StatusOr<KernelChoice> ChooseKernels(const KernelOptions& options);

// The faster of two rows of products with such weights, one thread, kMeasuredRows rows; DataLoss if
// their results differ by more than rounding can.
inline constexpr int kMeasuredRows = 96;
absl::StatusOr<KernelChoice> FasterKernels(Isa tiles, Isa vectors, const PackedMatrix& like);

// "amx (96 rows x 256 x 2048: amx 0.20 ms, avx512bf16 0.45 ms)"
std::string Describe(const KernelChoice& choice);

}  // namespace kt

#endif  // KT_WORKER_KERNEL_CHOICE_H_
