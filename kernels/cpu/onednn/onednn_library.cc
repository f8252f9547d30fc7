// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn/onednn_library.h"

#include <dlfcn.h>

#include "common/base/status.h"

namespace kt {
namespace {

static_assert(DNNL_VERSION_MAJOR == 2, "the C interface differs between major versions");
constexpr char kFile[] = "libdnnl.so.2";

template <typename F>
bool Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

absl::Status Load(OneDnnLibrary* out) {
  void* library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unavailable("oneDNN: {}; install the package libdnnl2", dlerror());
  // dlsym looks into the libraries that this one needs too.
  bool found = Find(library, "omp_set_num_threads", &out->omp_set_num_threads);
#define KT_FIND(name) found = found && Find(library, "dnnl_" #name, &out->name);
  KT_ONEDNN_FUNCTIONS(KT_FIND)
#undef KT_FIND
  if (!found) {
    return Unavailable("oneDNN: {} is not a 2.x for OpenMP as Debian's libdnnl2 is ({})", kFile,
                       dlerror());
  }
  if (out->engine_create(&out->engine, dnnl_cpu, 0) != dnnl_success)
    return Unavailable("oneDNN: {} offers no CPU engine", kFile);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<const OneDnnLibrary*> OneDnnLibrary::Get() {
  static OneDnnLibrary library;
  static const absl::Status& status = *new absl::Status(Load(&library));
  if (!status.ok()) return status;
  return &library;
}

}  // namespace kt
