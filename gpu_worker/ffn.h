// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of dense layers and shared experts.
#ifndef KT_GPU_WORKER_FFN_H_
#define KT_GPU_WORKER_FFN_H_

#include "gpu_worker/dense_weights.h"
#include "gpu_worker/ops.h"

namespace kt {

// The widest intermediate dimension of dense layers and shared experts.
int FfnWidth(const ModelConfig& config);

// Device memory for rows of that width.
struct FfnBuffers {
  float *gate = nullptr, *up = nullptr;
  void* middle = nullptr;  // activations

  static size_t Bytes(int width, int tokens_max, int activation_bytes);
  static FfnBuffers Carve(uint8_t* memory, int width, int tokens_max);
};

// y [tokens, hidden] fp32 = down(silu(gate x) * up x).
void RunFfn(Ops& ops, const FfnWeights& w, const void* x, int tokens, const FfnBuffers& buffers,
            float* y);

}  // namespace kt

#endif  // KT_GPU_WORKER_FFN_H_
