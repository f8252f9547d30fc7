// SPDX-License-Identifier: Apache-2.0
// The process-wide log: spdlog's default logger on stderr. Call sites use spdlog::info(...) and its
// like; prompts are never logged.
#ifndef KT_COMMON_OBSERVE_LOG_H_
#define KT_COMMON_OBSERVE_LOG_H_

#include <string>

#include "absl/status/status.h"

namespace kt {

// Sets name, level (trace, debug, info, warning, error) and format ("text": time level
// process-message; "json": one object a line with time, level, process, pid, message).
// InvalidArgument: another level or format. Call once, first thing in main.
absl::Status SetUpLog(const std::string& process_name, const std::string& level,
                      const std::string& format);

// Ends a process that cannot go on: logs the status as error, hands the sentence to kt-node
// (KT_ERROR_FD), which shows it as the run's last line if this process was still starting, and
// returns the exit code: `return FailProcess(status);` in main.
int FailProcess(const absl::Status& status);

}  // namespace kt

#endif  // KT_COMMON_OBSERVE_LOG_H_
