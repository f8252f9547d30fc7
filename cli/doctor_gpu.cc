// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/doctor_checks.h"

namespace kt::cli {
namespace {

struct Gpu {
  std::string name;
  double memory_bytes = 0;
  double free_bytes = 0;
};

// The few calls of NVIDIA's management library that are needed, looked up at run time: it comes
// with the driver, not with us.
class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    const auto init = Find<int (*)()>("nvmlInit_v2");
    ready_ = init != nullptr && init() == 0;
  }
  ~Nvml() {
    if (const auto shutdown = Find<int (*)()>("nvmlShutdown"); ready_ && shutdown != nullptr)
      shutdown();
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool loaded() const { return library_ != nullptr; }
  bool ready() const { return ready_; }

  std::string DriverVersion() const {
    const auto get = Find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
    char text[96] = {};
    return ready_ && get != nullptr && get(text, sizeof(text)) == 0 ? text : "unknown";
  }

  std::vector<Gpu> Gpus() const {
    struct Memory {
      unsigned long long total, free, used;
    };
    using Device = void*;
    const auto count = Find<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
    const auto at = Find<int (*)(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
    const auto name = Find<int (*)(Device, char*, unsigned)>("nvmlDeviceGetName");
    const auto memory = Find<int (*)(Device, Memory*)>("nvmlDeviceGetMemoryInfo");
    std::vector<Gpu> gpus;
    unsigned devices = 0;
    if (!ready_ || !count || !at || !name || !memory || count(&devices) != 0) return gpus;
    for (unsigned i = 0; i < devices; ++i) {
      Device device = nullptr;
      char text[96] = {};
      Memory bytes{};
      if (at(i, &device) != 0 || name(device, text, sizeof(text)) != 0 ||
          memory(device, &bytes) != 0)
        continue;
      gpus.push_back({text, static_cast<double>(bytes.total), static_cast<double>(bytes.free)});
    }
    return gpus;
  }

 private:
  template <typename F>
  F Find(const char* symbol) const {
    return library_ == nullptr ? nullptr : reinterpret_cast<F>(dlsym(library_, symbol));
  }
  void* library_;
  bool ready_ = false;
};

// /dev/nvidia0, /dev/nvidia1, ...
int DeviceFiles(const std::string& root) {
  int count = 0;
  std::error_code error;
  while (std::filesystem::exists(fmt::format("{}/dev/nvidia{}", root, count), error)) ++count;
  return count;
}

}  // namespace

void CheckGpus(const DoctorOptions& options, Findings& findings) {
  const int files = DeviceFiles(options.root);
  const Nvml nvml;
  const std::vector<Gpu> gpus = nvml.Gpus();
  for (size_t i = 0; i < gpus.size(); ++i) {
    findings.push_back(
        {Level::kOk, fmt::format("GPU {}", i),
         fmt::format("{}, {} ({} free), driver {}", gpus[i].name, Size(gpus[i].memory_bytes),
                     Size(gpus[i].free_bytes), nvml.DriverVersion())});
  }
  if (!gpus.empty()) {
    rlimit memlock{};
    getrlimit(RLIMIT_MEMLOCK, &memlock);
    if (memlock.rlim_cur != RLIM_INFINITY) {
      findings.push_back(
          {Level::kWarn, "page-locked memory",
           fmt::format("memlock limit {} KiB", memlock.rlim_cur / 1024),
           "ulimit -l unlimited (LimitMEMLOCK=infinity in a unit, --ulimit memlock=-1 for a "
           "container), so that copies to the GPU run at full speed"});
    }
  } else if (files > 0) {
    findings.push_back({Level::kWarn, "GPUs",
                        fmt::format("{} device files, but the driver's library {}", files,
                                    nvml.loaded() ? "does not start" : "is missing"),
                        "install the driver's user-space part (libnvidia-ml.so.1) of the same "
                        "version as the kernel module"});
  } else {
    findings.push_back({Level::kOk, "GPUs", "none: the host device computes what a GPU would"});
  }
}

}  // namespace kt::cli
