// SPDX-License-Identifier: Apache-2.0
#ifndef KT_WORKER_PACK_STORED_H_
#define KT_WORKER_PACK_STORED_H_

#include "absl/status/status.h"
#include "common/base/parallel.h"
#include "common/weights/checkpoint.h"
#include "kernels/cpu/gemm/packed_matrix.h"

namespace kt {

// Packs the whole view (packed_matrix.h), runs of tiles on the threads of `parallel`. False: as
// Pack.
[[nodiscard]] bool PackParallel(const MatrixView& view, const PackedFormat& format, uint8_t* packed,
                                Parallel& parallel);

// DataLoss: what Pack found in a matrix with these codes.
absl::Status NanCode(const TensorInfo& codes);

}  // namespace kt

#endif  // KT_WORKER_PACK_STORED_H_
