// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/ffn.h"

#include <algorithm>

namespace kt {
namespace {

// Every buffer starts on 256 bytes.
size_t RowsBytes(int width, int tokens_max, int element) {
  return (static_cast<size_t>(width) * static_cast<size_t>(tokens_max) *
              static_cast<size_t>(element) +
          255) /
         256 * 256;
}

}  // namespace

int FfnWidth(const ModelConfig& config) {
  int width = 0;
  for (const LayerConfig& l : config.layers) width = std::max(width, l.dense_intermediate);
  for (const MoeConfig& m : config.moes) width = std::max(width, m.shared_intermediate);
  return width;
}

size_t FfnBuffers::Bytes(int width, int tokens_max, int activation_bytes) {
  return 2 * RowsBytes(width, tokens_max, 4) + RowsBytes(width, tokens_max, activation_bytes);
}

FfnBuffers FfnBuffers::Carve(uint8_t* memory, int width, int tokens_max) {
  const size_t floats = RowsBytes(width, tokens_max, 4);
  return {reinterpret_cast<float*>(memory), reinterpret_cast<float*>(memory + floats),
          memory + 2 * floats};
}

void RunFfn(Ops& ops, const FfnWeights& w, const void* x, int tokens, const FfnBuffers& buffers,
            float* y) {
  ops.LinearF32(w.gate, x, tokens, buffers.gate);
  ops.LinearF32(w.up, x, tokens, buffers.up);
  ops.SiluMul(buffers.gate, buffers.up, tokens, w.gate.n, buffers.middle);
  ops.LinearF32(w.down, buffers.middle, tokens, y);
}

}  // namespace kt
