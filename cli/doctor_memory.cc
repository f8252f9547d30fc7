// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/resource.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "cli/doctor_checks.h"
#include "common/base/status.h"
#include "common/ipc/segment.h"
#include "common/topology/cgroup.h"
#include "common/topology/system_file.h"
#include "node/available_memory.h"

namespace kt::cli {
namespace {

using topology::ReadSystemFile;
using topology::Split;

// A number of /proc/meminfo, in the unit it stands there (kB for sizes).
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

// The choice in brackets: "always [madvise] never".
std::string Chosen(const std::string& file) {
  const std::string text = ReadSystemFile(file).value_or("");
  const size_t begin = text.find('[');
  const size_t end = text.find(']', begin);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return text.substr(begin + 1, end - begin - 1);
}

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

// Weights and activations lie in shared memory (memfd); anonymous memory is scratch only.
void CheckHugePages(const std::string& root, Findings& findings) {
  const std::string folder = root + "/sys/kernel/mm/transparent_hugepage/";
  const std::string anonymous = Chosen(folder + "enabled");
  const bool anonymous_off = anonymous.empty() || anonymous == "never";
  findings.push_back(
      {anonymous_off ? Level::kWarn : Level::kOk, "huge pages",
       anonymous.empty() ? "not offered by this kernel" : anonymous,
       anonymous_off ? fmt::format("as root: echo madvise > {}enabled", folder) : ""});
  const std::string shared = Chosen(folder + "shmem_enabled");
  const bool shared_off =
      shared != "advise" && shared != "always" && shared != "within_size" && shared != "force";
  findings.push_back({shared_off ? Level::kWarn : Level::kOk, "huge pages, shared",
                      shared.empty() ? "not offered by this kernel" : shared,
                      shared_off ? fmt::format("as root: echo advise > {}shmem_enabled; without it "
                                               "weights are read from 4 KiB pages, about a "
                                               "sixth slower",
                                               folder)
                                 : ""});
  const int64_t reserved = MemInfo(root, "HugePages_Total").value_or(0);
  const int64_t page_kb = MemInfo(root, "Hugepagesize").value_or(0);
  findings.push_back({.subject = "hugetlb pages",
                      .value = fmt::format("{} reserved of {} KiB", reserved, page_kb),
                      .detail = true});
}

void CheckSharedMemory(Findings& findings) {
  constexpr size_t kProbeBytes = 1 << 20;
  const auto segment = Segment::Create("kt-doctor", kProbeBytes);
  findings.push_back({segment.ok() ? Level::kOk : Level::kFail, "shared memory",
                      segment.ok() ? "memfd with seals works" : Message(segment.status()),
                      segment.ok()
                          ? ""
                          : "the processes exchange weights and rows through memfds: allow "
                            "memfd_create in the sandbox or raise the memory limit"});
}

}  // namespace

void CheckMemory(const DoctorOptions& options, Findings& findings) {
  CheckSizes(options.root, findings);
  CheckHugePages(options.root, findings);
  CheckSharedMemory(findings);
  rlimit memlock{};
  getrlimit(RLIMIT_MEMLOCK, &memlock);
  const bool unlimited = memlock.rlim_cur == RLIM_INFINITY;
  findings.push_back(
      {.subject = "memlock limit",
       .value = unlimited ? "unlimited"
                          : fmt::format("{} KiB (enough without a GPU)", memlock.rlim_cur / 1024)});
}

}  // namespace kt::cli
