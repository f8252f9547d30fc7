// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/resource.h>

#include <charconv>

#include "cli/doctor_checks.h"
#include "common/base/status.h"
#include "common/ipc/segment.h"
#include "common/topology/arena.h"
#include "common/topology/cgroup.h"
#include "common/topology/system_file.h"
#include "node/available_memory.h"

namespace kt::cli {
namespace {

using topology::ReadSystemFile;
using topology::Split;

void CheckSizes(const std::string& root, Findings& findings) {
  constexpr double kScarce = 2.0 * (1 << 30);
  const auto total = MemInfo(root, "MemTotal");
  const double available = static_cast<double>(AvailableMemoryBytes(root));
  if (!total) {
    findings.push_back(
        {Level::kWarn, "memory", "not known: /proc/meminfo cannot be read", "mount /proc"});
  } else {
    findings.push_back(
        {available < kScarce ? Level::kWarn : Level::kOk, "memory",
         fmt::format("{} in all, {} available", Size(static_cast<double>(*total) * 1024),
                     Size(available)),
         available < kScarce
             ? "end other programs or raise the memory limit: even small models need 2 GiB"
             : ""});
  }
  if (const auto limit = topology::ReadMemoryLimit(root)) {
    findings.push_back(
        {Level::kOk, "memory limit",
         fmt::format("{} in {}", Size(static_cast<double>(limit->bytes)), limit->file)});
  }
}

void CheckAnonymousPages(const std::string& root, Findings& findings) {
  const std::string file = root + "/sys/kernel/mm/transparent_hugepage/enabled";
  const std::string setting = topology::ChosenSetting(file);
  const bool off = setting.empty() || setting == "never";
  findings.push_back({off ? Level::kWarn : Level::kOk, "huge pages",
                      setting.empty() ? "not offered by this kernel" : setting,
                      off ? fmt::format("as root: echo madvise > {}", file) : ""});
}

// Tries what the runtime does: experts and rows lie in memfds, experts in huge pages of them. The
// kernel's setting does not decide that alone (MADV_COLLAPSE, Linux 6.1).
void CheckSharedPages(const std::string& root, Findings& findings) {
  constexpr size_t kProbeBytes = 2 * kHugePage;
  auto segment = Segment::Reserve("kt-doctor", kProbeBytes, PageKind::kTransparent);
  absl::Status status = segment.status();
  if (status.ok()) status = segment->Populate(0, kProbeBytes, PageKind::kTransparent);
  findings.push_back({status.ok() ? Level::kOk : Level::kFail, "shared memory",
                      status.ok() ? "memfd with seals works" : Message(status),
                      status.ok() ? ""
                                  : "the processes exchange weights and rows through memfds: allow "
                                    "memfd_create in the sandbox or raise the memory limit"});
  if (!status.ok()) return;
  const bool huge = ReadPageUse(segment->data(), kProbeBytes).kind == PageKind::kTransparent;
  findings.push_back(
      {huge ? Level::kOk : Level::kWarn, "huge pages, shared",
       huge ? "a memfd gets them" : "a memfd gets 4 KiB pages",
       huge ? ""
            : topology::HugePageAdvice(0, root) +
                  "; without it experts are read more slowly (by a sixth on a Zen 4)"});
}

void CheckHugetlbPages(const std::string& root, Findings& findings) {
  findings.push_back({.subject = "hugetlb pages",
                      .value = fmt::format("{} reserved of {} KiB, {} free",
                                           MemInfo(root, "HugePages_Total").value_or(0),
                                           MemInfo(root, "Hugepagesize").value_or(0),
                                           MemInfo(root, "HugePages_Free").value_or(0)),
                      .detail = true});
}

}  // namespace

std::optional<int64_t> MemInfo(const std::string& root, std::string_view field) {
  for (const std::string& line : Split(ReadSystemFile(root + "/proc/meminfo").value_or(""), '\n')) {
    const auto words = Split(line, ' ');
    int64_t value = 0;
    if (words.size() < 2 || words[0] != std::string(field) + ":") continue;
    if (std::from_chars(words[1].data(), words[1].data() + words[1].size(), value).ec ==
        std::errc())
      return value;
  }
  return std::nullopt;
}

void CheckMemory(const DoctorOptions& options, Findings& findings) {
  CheckSizes(options.root, findings);
  CheckAnonymousPages(options.root, findings);
  CheckSharedPages(options.root, findings);
  CheckHugetlbPages(options.root, findings);
  rlimit memlock{};
  getrlimit(RLIMIT_MEMLOCK, &memlock);
  const bool unlimited = memlock.rlim_cur == RLIM_INFINITY;
  findings.push_back(
      {.subject = "memlock limit",
       .value = unlimited ? "unlimited"
                          : fmt::format("{} KiB (enough without a GPU)", memlock.rlim_cur / 1024)});
}

}  // namespace kt::cli
