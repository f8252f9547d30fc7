// SPDX-License-Identifier: Apache-2.0
// What a task of delta_net.h hands to the row of the instruction set.
#ifndef KT_KERNELS_CPU_DELTA_NET_DELTA_NET_HEAD_H_
#define KT_KERNELS_CPU_DELTA_NET_DELTA_NET_HEAD_H_

#include "kernels/cpu/delta_net/delta_net.h"

namespace kt {

constexpr int kDeltaNetTile = 64;   // tokens taken together; a chunk of the chunked form
constexpr int kDeltaNetPanel = 16;  // columns of S that adjoin

// Sizes and offsets in floats; widths are rounded up to 16 and what pads them is zero, so every
// piece is whole vectors and aligned to 64 bytes.
//
// State of a key head: S [group, value_width / 16, key_dim, 16], so that a pass over some columns
// reads memory in order; then the last conv_kernel - 1 inputs of the convolution, oldest first,
// [conv_kernel - 1, channels] with channels = q | k | v of each value head.
struct DeltaNetLayout {
  int group;  // value heads of a key head
  int key_width;
  int value_width;
  int channels;
  int64_t history;  // offset in the state
  int64_t state;    // of a key head

  // Scratch, behind rows [conv_kernel - 1 + tile, channels]:
  int64_t conv;         // [conv_kernel, channels]
  int64_t sums;         // [tile, value_width]
  int64_t gates;        // log decay, decay and beta, [3, tile]
  int64_t keys;         // k of the tile transposed, [key_dim, tile]
  int64_t key_key;      // k_i . k_j, [tile, tile]
  int64_t query_key;    // q_i . k_j, [tile, tile]
  int64_t corrections;  // [tile, tile], of one value head
  int64_t scores;       // [tile, tile], of one value head
  int64_t scratch;      // all
};

struct DeltaNetHeadArgs {
  const DeltaNetArgs* args;
  const DeltaNetLayout* layout;
  int key_head;
  bool chunked;
  float* scratch;
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_DELTA_NET_DELTA_NET_HEAD_H_
