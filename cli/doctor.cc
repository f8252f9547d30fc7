// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor.h"

#include <algorithm>
#include <iostream>

#include "cli/doctor_checks.h"
#include "common/base/exit_code.h"
#include "common/base/json.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

const char* LevelName(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarn:
      return "warn";
    case Level::kFail:
      return "FAIL";
  }
  return "";
}

int64_t Count(const std::vector<Finding>& findings, Level level) {
  return std::count_if(findings.begin(), findings.end(),
                       [level](const Finding& f) { return f.level == level; });
}

}  // namespace

std::string Size(double bytes) {
  constexpr double kMiB = 1 << 20;
  return bytes < 1024 * kMiB ? fmt::format("{:.0f} MiB", bytes / kMiB)
                             : fmt::format("{:.1f} GiB", bytes / 1024 / kMiB);
}

std::vector<Finding> Examine(const DoctorOptions& options, const topology::Topology& topology) {
  Findings findings;
  CheckProcessor(options, topology, findings);
  CheckMemory(options, findings);
  CheckGpus(options, findings);
  CheckSystem(options, findings);
  CheckModel(options, findings);
  return findings;
}

std::string FormatTable(const std::vector<Finding>& findings, bool verbose) {
  size_t width = 0;
  for (const Finding& f : findings) width = std::max(width, f.subject.size());
  std::string text;
  for (const Finding& f : findings) {
    if (f.detail && !verbose && f.level == Level::kOk) continue;
    text += fmt::format("{:<4}  {:<{}}  {}\n", LevelName(f.level), f.subject, width, f.value);
    if (!f.advice.empty()) text += fmt::format("      {:<{}}  -> {}\n", "", width, f.advice);
  }
  return text + fmt::format("{} failed, {} warnings\n", Count(findings, Level::kFail),
                            Count(findings, Level::kWarn));
}

std::string FormatJson(const std::vector<Finding>& findings) {
  Json checks = Json::array();
  for (const Finding& f : findings) {
    const std::string level = f.level == Level::kFail ? "fail" : LevelName(f.level);
    checks.push_back(
        {{"subject", f.subject}, {"level", level}, {"value", f.value}, {"advice", f.advice}});
  }
  return DumpJson({{"ok", Count(findings, Level::kFail) == 0}, {"checks", checks}}, 2) + "\n";
}

int DoctorMain(const DoctorOptions& options) {
  const auto topology = topology::Topology::Load();
  if (!topology.ok()) {
    std::cerr << "kt doctor: " << Message(topology.status()) << "\n";
    return kExitHardware;
  }
  const auto findings = Examine(options, *topology);
  std::cout << (options.json ? FormatJson(findings) : FormatTable(findings, options.verbose));
  return Count(findings, Level::kFail) == 0 ? kExitOk : kExitFailure;
}

}  // namespace kt::cli
