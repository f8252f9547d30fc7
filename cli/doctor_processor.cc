// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <hwloc.h>

#include <memory>

#include "cli/doctor_checks.h"
#include "common/base/status.h"
#include "common/topology/cgroup.h"
#include "common/topology/cpu_budget.h"
#include "common/topology/system_file.h"
#include "kernels/cpu/features/cpu_features.h"
#include "kernels/cpu/gemm/gemm.h"

namespace kt::cli {
namespace {

using topology::CpuBudget;
using topology::ReadSystemFile;
using topology::Topology;
using topology::Trim;

// Weight formats; each has kernels in every row of the table (kernels/cpu/gemm).
constexpr const char* kFormats[] = {"BF16", "FP8", "INT8", "INT4", "MXFP4"};

// What --deterministic off would bring, or that the row in use needs it.
void CheckTiles(Isa selected, Findings& findings) {
  if (!IsaSupported(Isa::kAmx) || (IsaForced() && selected != Isa::kAmx)) return;
  const absl::Status ready = GemmReady(Isa::kAmx);
  if (!ready.ok()) {
    findings.push_back({Level::kWarn, "AMX", Message(ready), "apt-get install libdnnl2"});
  } else if (!BatchInvariant(selected)) {
    findings.push_back({Level::kWarn, "AMX",
                        "KT_FORCE_ISA=amx: not batch-invariant between decode and prefill",
                        "serve with --deterministic off, or unset KT_FORCE_ISA"});
  } else {
    findings.push_back(
        {Level::kOk, "AMX",
         fmt::format("with --deterministic off: products of more than {} rows through oneDNN where "
                     "it measures faster at start; not batch-invariant between decode and prefill",
                     kFewTokens)});
  }
}

void CheckKernels(Findings& findings) {
  std::string present, missing;
  for (const auto& [flag, has] : CpuFlagList()) {
    std::string& list = has ? present : missing;
    list += (list.empty() ? "" : " ") + flag;
  }
  findings.push_back(
      {Level::kOk, "CPU features", present.empty() ? "none of those the kernels use" : present});
  findings.push_back({.subject = "CPU lacks",
                      .value = missing.empty() ? "nothing that the kernels use" : missing,
                      .detail = true});

  const auto selected = SelectIsa();
  if (!selected.ok()) {
    findings.push_back({Level::kFail, "kernels", Message(selected.status()),
                        "unset KT_FORCE_ISA or name a row that this CPU has"});
    return;
  }
  const Isa row = SelectGemm(*selected).isa;
  const bool slow = row == Isa::kScalar;
  for (const char* format : kFormats) {
    findings.push_back(
        {slow ? Level::kWarn : Level::kOk, fmt::format("kernels {}", format), IsaName(row),
         slow ? "plain C++ is many times slower; use a CPU with AVX2, or unset KT_FORCE_ISA" : ""});
  }
  CheckTiles(*selected, findings);
}

// CPUs in a list such as "0-3,8"; 0 where there is none.
int CpusIn(const std::string& file) {
  const auto text = ReadSystemFile(file);
  if (!text) return 0;
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> set(hwloc_bitmap_alloc(),
                                                                          &hwloc_bitmap_free);
  if (hwloc_bitmap_list_sscanf(set.get(), std::string(Trim(*text)).c_str()) != 0) return 0;
  return std::max(0, hwloc_bitmap_weight(set.get()));
}

// Says which of cpuset and affinity mask keeps CPUs from us.
void CheckMask(const std::string& root, int allowed, Findings& findings) {
  const int online = CpusIn(root + "/sys/devices/system/cpu/online");
  int in_cpuset = online;
  std::string cpuset_file;
  for (const std::string& dir : topology::CgroupDirs("cpuset", root)) {
    for (const char* name : {"/cpuset.cpus.effective", "/cpuset.effective_cpus"}) {
      const int count = CpusIn(dir + name);
      if (count > 0 && count < in_cpuset) in_cpuset = count, cpuset_file = dir + name;
    }
  }
  Finding finding{.subject = "allowed CPUs",
                  .value = fmt::format("{} of {} online", allowed, online),
                  .detail = true};
  if (allowed < online) {
    finding.level = Level::kWarn;
    finding.detail = false;
    finding.value +=
        in_cpuset < online ? fmt::format("; the cpuset has {} ({})", in_cpuset, cpuset_file) : "";
    finding.value +=
        allowed < in_cpuset ? "; the affinity mask of this process leaves out the rest" : "";
    finding.advice = "start outside of taskset and with a wider cpuset to use the others";
  }
  findings.push_back(finding);
}

void CheckCores(const std::string& root, const Topology& machine, Findings& findings) {
  const CpuBudget budget = topology::MeasureCpuBudget(machine, root);
  CheckMask(root, budget.allowed_pus, findings);
  const bool capped = budget.usable_cores < budget.physical_cores;
  findings.push_back(
      {capped ? Level::kWarn : Level::kOk, "usable cores", topology::Describe(budget),
       capped ? "raise the CPU quota of the container or unit to use the other cores" : ""});
  findings.push_back({.subject = "default threads",
                      .value = fmt::format("--kt-cpuinfer {}", topology::DefaultCpuThreads(budget)),
                      .detail = true});
  if (const int64_t throttled = topology::ThrottleCount(budget); throttled > 0) {
    findings.push_back({Level::kWarn, "CPU throttling",
                        fmt::format("{} periods so far ({})", throttled, budget.quota->stat_file),
                        "if this grows while serving, lower --kt-cpuinfer or raise the quota"});
  }
}

void CheckNuma(const std::string& root, const Topology& machine, Findings& findings) {
  for (const topology::NumaNode& node : machine.nodes()) {
    Finding finding{.subject = fmt::format("NUMA node {}", node.id),
                    .value = fmt::format("{} usable cores, {}", node.cores.size(),
                                         Size(static_cast<double>(node.memory_bytes)))};
    if (!node.cores.empty() && node.memory_bytes == 0) {
      finding.level = Level::kWarn;
      finding.advice =
          "its cores read all weights from another node; fill its memory slots or leave it out "
          "with --kt-numa-nodes";
    }
    findings.push_back(finding);
  }
  const int threads = topology::DefaultCpuThreads(topology::MeasureCpuBudget(machine, root));
  findings.push_back(
      {.subject = "expert workers",
       .value = fmt::format("--kt-threadpool-count {} (one per NUMA node with cores)",
                            topology::DefaultWorkers(machine, threads)),
       .detail = true});
}

}  // namespace

void CheckProcessor(const DoctorOptions& options, const Topology& machine, Findings& findings) {
  findings.push_back({Level::kOk, "CPU", CpuModelName()});
  CheckKernels(findings);
  CheckCores(options.root, machine, findings);
  CheckNuma(options.root, machine, findings);
  std::string caches;
  for (const topology::Cache& cache : machine.caches()) {
    caches += fmt::format("{}L{} {} x {} KiB", caches.empty() ? "" : ", ", cache.level,
                          cache.instances, cache.bytes / 1024);
  }
  findings.push_back(
      {.subject = "caches", .value = caches.empty() ? "not known" : caches, .detail = true});
}

}  // namespace kt::cli
