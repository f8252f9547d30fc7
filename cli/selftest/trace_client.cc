// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/trace_client.h"

#include "common/base/status.h"
#include "common/rpc/server_runner.h"
#include "common/rpc/status_convert.h"

namespace kt {
namespace {

template <typename To, typename From>
void Append(std::vector<To>& to, const From& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void AppendCapture(const proto::CaptureResult& capture, Trace& trace) {
  Append(trace.logits, capture.logits());
  trace.hidden.resize(
      std::max<size_t>(trace.hidden.size(), static_cast<size_t>(capture.hidden_size())));
  for (int i = 0; i < capture.hidden_size(); ++i)
    Append(trace.hidden[static_cast<size_t>(i)], capture.hidden(i).values());
  for (const proto::LayerRouting& r : capture.routing()) {
    RoutingTrace& to = trace.routing[r.layer()];
    Append(to.ids, r.expert_ids());
    Append(to.weights, r.weights());
    Append(to.logits, r.router_logits());
  }
  for (const proto::LayerSelection& s : capture.selections())
    trace.selections[s.layer()].assign(s.positions().begin(), s.positions().end());
}

}  // namespace

TraceClient::TraceClient(const std::string& coordinator_address)
    : stub_(proto::Diagnostics::NewStub(InternalChannel(coordinator_address))) {}

absl::StatusOr<Trace> TraceClient::Run(const proto::TraceRequest& request) {
  grpc::ClientContext context;
  auto reader = stub_->Trace(&context, request);
  Trace trace;
  proto::TraceEvent event;
  bool finished = false;
  while (reader->Read(&event)) {
    Append(trace.token_ids, event.token_ids());
    Append(trace.logprobs, event.logprobs());
    Append(trace.prompt_logprobs, event.prompt_logprobs());
    for (const proto::CaptureResult& capture : event.captures()) AppendCapture(capture, trace);
    finished |= event.finished();
  }
  KT_RETURN_IF_ERROR(FromGrpc(reader->Finish()));
  if (!finished) return Internal("trace: the stream ended before the request did");
  return trace;
}

absl::StatusOr<proto::SelfCheckReplies> TraceClient::SelfCheck() {
  grpc::ClientContext context;
  proto::SelfCheckRequest request;
  request.set_all_layers(true);
  proto::SelfCheckReplies replies;
  KT_RETURN_IF_ERROR(FromGrpc(stub_->SelfCheck(&context, request, &replies)));
  return replies;
}

}  // namespace kt
