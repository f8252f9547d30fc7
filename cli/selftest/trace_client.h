// SPDX-License-Identifier: Apache-2.0
// Runs traces against a running system and joins what its steps captured.
#ifndef KT_CLI_SELFTEST_TRACE_CLIENT_H_
#define KT_CLI_SELFTEST_TRACE_CLIENT_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/diagnostics.grpc.pb.h"

namespace kt {

struct RoutingTrace {
  std::vector<int32_t> ids;    // [rows, k]
  std::vector<float> weights;  // [rows, k]
  std::vector<float> logits;   // [rows, experts]
};

// Rows are the positions of the request, in order.
struct Trace {
  std::vector<int32_t> token_ids;             // sampled
  std::vector<proto::TokenLogprob> logprobs;  // of the sampled tokens
  std::vector<proto::TokenLogprob> prompt_logprobs;
  std::vector<float> logits;               // [rows, vocab]
  std::vector<std::vector<float>> hidden;  // [layers + 2][rows, hidden]
  std::map<int, RoutingTrace> routing;     // by layer
  std::map<int, std::vector<int32_t>>
      selections;  // by layer: what the last prompt token attends to
};

class TraceClient {
 public:
  // `coordinator_address`: unix:RUNTIME_DIR/coordinator.sock
  explicit TraceClient(const std::string& coordinator_address);
  absl::StatusOr<Trace> Run(const proto::TraceRequest& request);
  // Every worker's kernels against the scalar reference, on all layers.
  absl::StatusOr<proto::SelfCheckReplies> SelfCheck();

 private:
  std::unique_ptr<proto::Diagnostics::Stub> stub_;
};

}  // namespace kt

#endif  // KT_CLI_SELFTEST_TRACE_CLIENT_H_
