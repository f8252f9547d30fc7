// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/timeline_service.h"

#include <unistd.h>

#include <chrono>
#include <map>
#include <string_view>
#include <thread>

#include "common/base/status.h"
#include "common/observe/timeline.h"
#include "common/rpc/status_convert.h"

namespace kt {
namespace {

constexpr double kSecondsMax = 60;
constexpr auto kPoll = std::chrono::milliseconds(20);

proto::TimelineReply ToProto(const std::string& process, const timeline::Recording& recording) {
  proto::TimelineReply reply;
  reply.set_process(process);
  reply.set_pid(getpid());
  reply.set_dropped(recording.dropped);
  std::map<std::string_view, uint32_t> names;
  auto index = [&](const char* name) {
    const auto [it, added] =
        names.emplace(name == nullptr ? "" : name, static_cast<uint32_t>(reply.names_size()));
    if (added) reply.add_names(std::string(it->first));
    return it->second;
  };
  for (const timeline::Event& e : recording.events) {
    proto::TimelineSpan* span = reply.add_spans();
    span->set_name(index(e.name));
    span->set_key(index(e.key));
    span->set_value(e.value);
    span->set_begin_ns(e.begin_ns);
    span->set_duration_ns(e.end_ns - e.begin_ns);
    span->set_thread(e.thread);
  }
  return reply;
}

}  // namespace

absl::StatusOr<proto::TimelineReply> RecordTimeline(const std::string& process,
                                                    const proto::TimelineRequest& request,
                                                    const std::function<bool()>& cancelled,
                                                    const std::function<void()>& started) {
  if (!(request.seconds() > 0 && request.seconds() <= kSecondsMax)) {
    return InvalidArgument("timeline: seconds is {}, more than 0 and at most {} are recorded",
                           request.seconds(), kSecondsMax);
  }
  if (!timeline::Start()) return FailedPrecondition("timeline: {} is being recorded", process);
  started();
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(request.seconds());
  while (std::chrono::steady_clock::now() < end && !cancelled()) std::this_thread::sleep_for(kPoll);
  return ToProto(process, timeline::Stop());
}

grpc::Status TimelineService::Record(grpc::ServerContext* context,
                                     const proto::TimelineRequest* request,
                                     proto::TimelineReply* reply) {
  auto recorded = RecordTimeline(process_, *request, [context] { return context->IsCancelled(); });
  if (!recorded.ok()) return ToGrpc(recorded.status());
  *reply = *std::move(recorded);
  return grpc::Status::OK;
}

}  // namespace kt
