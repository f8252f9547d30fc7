// SPDX-License-Identifier: Apache-2.0
#include "worker/layer_facts.h"

namespace kt {

void SetExpertFacts(const WeightSummary& summary, size_t layer, size_t experts, size_t bytes,
                    proto::LayerWeights* out) {
  if (experts == 0) return;
  out->set_expert_count(static_cast<int>(experts));
  out->mutable_experts()->set_precision(summary.layers[layer].experts.precision);
  out->mutable_experts()->set_bytes(static_cast<int64_t>(bytes));
}

void SetPart(const PartSummary& part, proto::PartWeights* out) {
  out->set_precision(part.precision);
  out->set_bytes(part.bytes);
}

proto::SelfCheckReply ToReply(const std::vector<SelfCheckRow>& rows) {
  proto::SelfCheckReply reply;
  for (const SelfCheckRow& r : rows) {
    proto::SelfCheckRow* out = reply.add_rows();
    out->set_layer(r.layer);
    out->set_part(r.part);
    out->set_precision(r.precision);
    out->set_error(r.error);
    out->set_bound(r.bound);
  }
  return reply;
}

}  // namespace kt
