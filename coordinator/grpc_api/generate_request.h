// SPDX-License-Identifier: Apache-2.0
// kt.api.GenerateRequest ↔ the API's own types.
#ifndef KT_COORDINATOR_GRPC_API_GENERATE_REQUEST_H_
#define KT_COORDINATOR_GRPC_API_GENERATE_REQUEST_H_

#include "absl/status/statusor.h"
#include "coordinator/api/request.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "proto/generation.pb.h"

namespace kt::grpc_api {

// By way of the JSON request of the same meaning, so that both front ends share one validation.
absl::StatusOr<api::ApiRequest> ReadGenerateRequest(const api::GenerateRequest& request,
                                                    const api::ModelFacts& facts,
                                                    const api::ApiDefaults& defaults);

api::TokenLogprobs ToProto(const TokenLogprob& token, const Tokenizer& tokenizer);

}  // namespace kt::grpc_api

#endif  // KT_COORDINATOR_GRPC_API_GENERATE_REQUEST_H_
