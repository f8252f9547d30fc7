// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_DIAGNOSTICS_DIAGNOSTICS_SERVICE_H_
#define KT_COORDINATOR_DIAGNOSTICS_DIAGNOSTICS_SERVICE_H_

#include <atomic>
#include <functional>
#include <utility>

#include "absl/status/statusor.h"
#include "coordinator/generation/generation.h"
#include "proto/diagnostics.grpc.pb.h"

namespace kt {

// Limits of the loaded model, against which token ids and lengths are checked.
struct TraceLimits {
  int vocab = 0;
  int context_length = 0;
};

using SelfCheckAll =
    std::function<absl::StatusOr<proto::SelfCheckReplies>(const proto::SelfCheckRequest&)>;

// Of the processes that there are.
using RecordAll = std::function<absl::StatusOr<proto::TimelineReplies>(
    const proto::TimelineRequest&, const std::function<bool()>& cancelled)>;

// Thread-safe; `generator` outlives it.
class DiagnosticsService final : public proto::Diagnostics::Service {
 public:
  DiagnosticsService(Generator* generator, const TraceLimits& limits, SelfCheckAll self_check,
                     RecordAll record)
      : generator_(generator),
        limits_(limits),
        self_check_(std::move(self_check)),
        record_(std::move(record)) {}
  grpc::Status Trace(grpc::ServerContext* context, const proto::TraceRequest* request,
                     grpc::ServerWriter<proto::TraceEvent>* writer) override;
  grpc::Status SelfCheck(grpc::ServerContext* context, const proto::SelfCheckRequest* request,
                         proto::SelfCheckReplies* replies) override;
  grpc::Status RecordTimelines(grpc::ServerContext* context, const proto::TimelineRequest* request,
                               proto::TimelineReplies* replies) override;

 private:
  absl::StatusOr<GenerationRequest> MakeRequest(const proto::TraceRequest& request);

  Generator* const generator_;
  const TraceLimits limits_;
  const SelfCheckAll self_check_;
  const RecordAll record_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace kt

#endif  // KT_COORDINATOR_DIAGNOSTICS_DIAGNOSTICS_SERVICE_H_
