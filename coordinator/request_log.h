// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_REQUEST_LOG_H_
#define KT_COORDINATOR_REQUEST_LOG_H_

#include "coordinator/generation/generation.h"

namespace kt {

// --log-requests: a line when a request is accepted or refused and one at its end; ids and counts,
// never text. Thread-safe.
class RequestLog final : public Generator {
 public:
  explicit RequestLog(Generator* next) : next_(next) {}  // outlives this
  absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  void Cancel(const std::string& request_id) override;
  void FlushCache() override { next_->FlushCache(); }

 private:
  Generator* const next_;
};

}  // namespace kt

#endif  // KT_COORDINATOR_REQUEST_LOG_H_
