// SPDX-License-Identifier: Apache-2.0
// `kt trace`: a timeline of all processes of a running system.
#ifndef KT_CLI_TRACE_H_
#define KT_CLI_TRACE_H_

#include <string>

#include "common/base/json.h"
#include "proto/timeline.pb.h"

namespace kt::cli {

struct TraceOptions {
  std::string runtime_dir;  // empty: the one run of this user
  double seconds = 5;
  std::string out = "kt-trace.json";
};

// In the Trace Event Format, which Perfetto and chrome://tracing open; times in us.
Json TraceEvents(const proto::TimelineReplies& replies);

int TraceMain(const TraceOptions& options);

}  // namespace kt::cli

#endif  // KT_CLI_TRACE_H_
