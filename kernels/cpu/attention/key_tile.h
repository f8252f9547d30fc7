// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CPU_ATTENTION_KEY_TILE_H_
#define KT_KERNELS_CPU_ATTENTION_KEY_TILE_H_

namespace kt {

constexpr int kKeyTile = 64;   // keys between two updates of the running maximum
constexpr int kSumLanes = 16;  // of a running sum: the lanes of the widest vector

}  // namespace kt

#endif  // KT_KERNELS_CPU_ATTENTION_KEY_TILE_H_
