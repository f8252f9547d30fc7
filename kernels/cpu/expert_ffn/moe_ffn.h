// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a mixture-of-experts layer for the experts held here:
//   y[t] = sum over slots s of weights[t][s] * (down_e glu(gate_e x[t], up_e x[t])),  e = ids[t][s]
// One flow for any number of tokens: rows are grouped by expert, every active expert's weights are
// read once per pass for all its rows, and the weighted sum of a token goes through its slots in
// order.
#ifndef KT_KERNELS_CPU_EXPERT_FFN_MOE_FFN_H_
#define KT_KERNELS_CPU_EXPERT_FFN_MOE_FFN_H_

#include <cstddef>
#include <cstdint>

#include "common/base/bf16.h"
#include "common/base/parallel.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/int8_gemm/int8_gemm.h"

namespace kt {

// gate and up [intermediate, hidden], down [hidden, intermediate], each in a format of its own,
// with biases where the model has them (that of down is added before the token's weight
// multiplies). gate.data == nullptr: the expert is not held here and its slots contribute nothing.
//
// Either all matrices of a layer have PackedFormat::int8_x and the same code or none has: x and the
// activation are then rounded to int8, row by row.
struct ExpertWeights {
  PackedMatrix gate, up, down;
};

struct MoeShape {
  int hidden = 0;
  int intermediate = 0;  // of the slice held here
  int num_experts = 0;
  int top_k = 0;
  GluParams glu;
};

// Tokens of a pass wherever a layer is served or measured.
inline constexpr int kMoeTokensPerPass = 512;

// The caller owns all memory. x and y may not overlap.
struct MoeArgs {
  const void* x;   // [tokens, hidden], bf16 or fp32
  bool x_is_bf16;  // true: the activation is rounded to bf16 before down; false: fp32 throughout
  int tokens;      // >= 0
  const int32_t* ids;    // [tokens, top_k]; values outside [0, num_experts) are skipped, repeated
                         // ones count each time
  const float* weights;  // [tokens, top_k]
  const ExpertWeights* experts;  // [num_experts]
  float* y;                      // [tokens, hidden], overwritten; zeros where no slot contributes
};

// A token's result bits depend on its own row, ids and weights only: not on the other tokens, the
// passes or the threads.
class MoeFfn {
 public:
  // `isa` must be supported by this CPU. More tokens than tokens_max_per_pass (>= 1) are processed
  // in several passes.
  MoeFfn(MoeShape shape, Isa isa, int tokens_max_per_pass);

  // What Run needs with a Parallel of that many threads, whatever the number of tokens.
  size_t ScratchBytes(int threads) const;

  // scratch: ScratchBytes(parallel.threads()) bytes, aligned to 64, used by this call alone until
  // it returns.
  void Run(const MoeArgs& args, uint8_t* scratch, Parallel& parallel) const noexcept;

 private:
  struct Scratch;
  struct Pass;

  Scratch Layout(uint8_t* base, int threads) const;
  void GroupByExpert(Pass& pass) const;
  void Gather(const Pass& pass) const;
  void GateUp(const Pass& pass) const;
  void QuantizeActivation(const Pass& pass) const;
  void Down(const Pass& pass) const;
  void Combine(const Pass& pass) const;
  void Multiply(const Pass& pass, const void* x, int first_row, int rows, const PackedMatrix& w,
                int tile_begin, int tile_end, float* y, int64_t y_stride) const;
  template <typename F>
  void ForTiles(const Pass& pass, int tiles, F f) const;

  const MoeShape shape_;
  const GemmKernels& gemm_;
  const Int8GemmKernels& int8_gemm_;
  const Isa isa_;
  const int tokens_max_per_pass_;
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_EXPERT_FFN_MOE_FFN_H_
