// SPDX-License-Identifier: Apache-2.0
// `kt doctor`: what this machine offers the runtime, what will go wrong and how to mend it; starts
// nothing.
#ifndef KT_CLI_DOCTOR_H_
#define KT_CLI_DOCTOR_H_

#include <string>
#include <vector>

#include "common/topology/topology.h"

namespace kt::cli {

enum class Level { kOk, kWarn, kFail };

struct Finding {
  Level level = Level::kOk;
  std::string subject;  // "usable cores"
  std::string value;    // what was found
  std::string advice;   // how to mend it; empty where nothing is wrong
  bool detail = false;  // shown with --verbose only (and always in JSON)
};

struct DoctorOptions {
  bool verbose = false;
  bool json = false;
  std::string model_dir;           // checked too; empty: none
  std::string kt_method;           // of the memory predicted; empty: the checkpoint's own
  std::string host = "127.0.0.1";  // address the server is to listen on
  int port = 30000;
  std::string root;  // put in front of /proc and /sys: another machine's files in tests
};

// Every check, in display order.
std::vector<Finding> Examine(const DoctorOptions& options, const topology::Topology& topology);

std::string FormatTable(const std::vector<Finding>& findings, bool verbose);
std::string FormatJson(const std::vector<Finding>& findings);

// Prints the report to stdout; exit code 0 unless a check failed.
int DoctorMain(const DoctorOptions& options);

}  // namespace kt::cli

#endif  // KT_CLI_DOCTOR_H_
