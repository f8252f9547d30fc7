// SPDX-License-Identifier: Apache-2.0
// oneDNN's C interface, loaded when first asked for: a process that does not multiply with it has
// none of its 5 MB, nor the OpenMP and OpenCL libraries that Debian's build brings along.
#ifndef KT_KERNELS_CPU_ONEDNN_ONEDNN_LIBRARY_H_
#define KT_KERNELS_CPU_ONEDNN_ONEDNN_LIBRARY_H_

#include <oneapi/dnnl/dnnl.h>

#include "absl/status/statusor.h"

namespace kt {

struct OneDnnLibrary {
#define KT_ONEDNN_FUNCTIONS(X) \
  X(engine_create)             \
  X(matmul_desc_init)          \
  X(memory_create)             \
  X(memory_desc_init_by_tag)   \
  X(memory_destroy)            \
  X(primitive_create)          \
  X(primitive_desc_create)     \
  X(primitive_desc_destroy)    \
  X(primitive_desc_query)      \
  X(primitive_destroy)         \
  X(primitive_execute)         \
  X(stream_create)             \
  X(stream_destroy)            \
  X(stream_wait)
#define KT_MEMBER(name) decltype(&::dnnl_##name) name = nullptr;
  KT_ONEDNN_FUNCTIONS(KT_MEMBER)
#undef KT_MEMBER
  void (*omp_set_num_threads)(int) = nullptr;  // of the OpenMP runtime that it computes with
  dnnl_engine_t engine = nullptr;              // the CPU

  // The same for all callers, for as long as the process lives. Thread-safe. Unavailable: not
  // installed, or not the version that this was built for.
  static absl::StatusOr<const OneDnnLibrary*> Get();
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_ONEDNN_ONEDNN_LIBRARY_H_
