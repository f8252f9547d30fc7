// SPDX-License-Identifier: Apache-2.0
#include "cli/trace.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>

#include "cli/runtime_dir.h"
#include "common/base/exit_code.h"
#include "common/base/status.h"
#include "common/ipc/node_client.h"
#include "common/rpc/server_runner.h"
#include "common/rpc/status_convert.h"
#include "proto/diagnostics.grpc.pb.h"

namespace kt::cli {
namespace {

absl::StatusOr<std::string> FindRun(const std::string& asked) {
  if (!asked.empty()) return asked;
  std::vector<std::string> live;
  for (const std::string& dir : FindRuntimeDirs()) {
    if (NodeClient::Connect(dir + "/" + kNodeSocketName).ok()) live.push_back(dir);
  }
  if (live.size() == 1) return live[0];
  if (live.empty()) return NotFound("nothing of this user runs here");
  return InvalidArgument("several run here; choose one with --runtime-dir: {}",
                         fmt::join(live, ", "));
}

absl::StatusOr<proto::TimelineReplies> Record(const TraceOptions& options) {
  KT_ASSIGN_OR_RETURN(const std::string dir, FindRun(options.runtime_dir));
  auto stub = proto::Diagnostics::NewStub(InternalChannel("unix:" + dir + "/coordinator.sock"));
  proto::TimelineRequest request;
  request.set_seconds(options.seconds);
  proto::TimelineReplies replies;
  grpc::ClientContext context;
  KT_RETURN_IF_ERROR(FromGrpc(stub->RecordTimelines(&context, request, &replies)));
  return replies;
}

double Us(int64_t ns) { return static_cast<double>(ns) / 1000; }

}  // namespace

Json TraceEvents(const proto::TimelineReplies& replies) {
  Json events = Json::array();
  for (const proto::TimelineReply& process : replies.processes()) {
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", process.pid()},
                      {"args", {{"name", process.process()}}}});
    for (const proto::TimelineSpan& span : process.spans()) {
      Json event{{"ph", "X"},
                 {"name", process.names(static_cast<int>(span.name()))},
                 {"pid", process.pid()},
                 {"tid", span.thread()},
                 {"ts", Us(span.begin_ns())},
                 {"dur", Us(span.duration_ns())}};
      const std::string& key = process.names(static_cast<int>(span.key()));
      if (!key.empty()) event["args"] = {{key, span.value()}};
      events.push_back(std::move(event));
    }
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

int TraceMain(const TraceOptions& options) {
  auto fail = [](const absl::Status& status) {
    fmt::print(stderr, "kt trace: {}\n", Message(status));
    return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailure;
  };
  // What is there is kept until there is something to replace it.
  if (!std::ofstream(options.out, std::ios::app))
    return fail(InvalidArgument("--out {}: cannot be written", options.out));
  const absl::StatusOr<proto::TimelineReplies> replies = Record(options);
  if (!replies.ok()) return fail(replies.status());
  std::ofstream out(options.out);
  out << DumpJson(TraceEvents(*replies)) << "\n";
  out.close();
  if (!out) return fail(InvalidArgument("--out {}: cannot be written", options.out));
  for (const proto::TimelineReply& process : replies->processes()) {
    fmt::print(
        "{:<26} {:>8} spans{}\n", process.process(), process.spans_size(),
        process.dropped() == 0 ? "" : fmt::format(", {} more did not fit", process.dropped()));
  }
  fmt::print("{}: open it in ui.perfetto.dev or chrome://tracing\n", options.out);
  return kExitOk;
}

}  // namespace kt::cli
