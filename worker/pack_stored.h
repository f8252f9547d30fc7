// SPDX-License-Identifier: Apache-2.0
#ifndef KT_WORKER_PACK_STORED_H_
#define KT_WORKER_PACK_STORED_H_

#include "common/base/parallel.h"
#include "kernels/cpu/gemm/packed_matrix.h"

namespace kt {

// Packs the whole view (packed_matrix.h), runs of tiles on the threads of `parallel`.
void PackParallel(const MatrixView& view, const PackedFormat& format, uint8_t* packed,
                  Parallel& parallel);

}  // namespace kt

#endif  // KT_WORKER_PACK_STORED_H_
