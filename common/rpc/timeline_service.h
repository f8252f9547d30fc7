// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_RPC_TIMELINE_SERVICE_H_
#define KT_COMMON_RPC_TIMELINE_SERVICE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/timeline.grpc.pb.h"

namespace kt {

// Records this process's spans for as long as the request says, or until `cancelled`.
// `started` is called once it is sure that it can. InvalidArgument: a length out of range;
// FailedPrecondition: somebody else records.
absl::StatusOr<proto::TimelineReply> RecordTimeline(
    const std::string& process, const proto::TimelineRequest& request,
    const std::function<bool()>& cancelled, const std::function<void()>& started = [] {});

class TimelineService final : public proto::Timeline::Service {
 public:
  explicit TimelineService(std::string process) : process_(std::move(process)) {}
  grpc::Status Record(grpc::ServerContext* context, const proto::TimelineRequest* request,
                      proto::TimelineReply* reply) override;

 private:
  const std::string process_;
};

}  // namespace kt

#endif  // KT_COMMON_RPC_TIMELINE_SERVICE_H_
