// SPDX-License-Identifier: Apache-2.0
// The groups of checks behind Examine(). Each appends its findings in display order.
#ifndef KT_CLI_DOCTOR_CHECKS_H_
#define KT_CLI_DOCTOR_CHECKS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/doctor.h"

namespace kt::cli {

using Findings = std::vector<Finding>;

void CheckProcessor(const DoctorOptions& options, const topology::Topology& topology,
                    Findings& findings);  // model, kernels, cores, NUMA
void CheckMemory(const DoctorOptions& options,
                 Findings& findings);  // sizes, limits, huge pages, shared memory
void CheckSystem(const DoctorOptions& options,
                 Findings& findings);  // kernel, open files, port, disk, Python
void CheckGpus(const DoctorOptions& options, Findings& findings);
void CheckModel(const DoctorOptions& options,
                Findings& findings);  // only when a directory is given

// A number of /proc/meminfo, in the unit it stands there (kB for sizes).
std::optional<int64_t> MemInfo(const std::string& root, std::string_view field);

std::string Size(double bytes);  // "12.3 GiB", below one GiB "345 MiB"

}  // namespace kt::cli

#endif  // KT_CLI_DOCTOR_CHECKS_H_
