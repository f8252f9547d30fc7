// SPDX-License-Identifier: Apache-2.0
#ifndef KT_WORKER_LAYER_FACTS_H_
#define KT_WORKER_LAYER_FACTS_H_

#include "common/weights/weight_summary.h"
#include "proto/coordinator.pb.h"
#include "proto/self_check.pb.h"
#include "worker/expert_bank.h"
#include "worker/self_check.h"

namespace kt {

// The experts of a layer that a worker holds, for its WorkerFacts.
void SetExpertFacts(const WeightSummary& summary, size_t layer, size_t experts, size_t bytes,
                    proto::LayerWeights* out);
void SetPart(const PartSummary& part, proto::PartWeights* out);
proto::SelfCheckReply ToReply(const std::vector<SelfCheckRow>& rows);

}  // namespace kt

#endif  // KT_WORKER_LAYER_FACTS_H_
