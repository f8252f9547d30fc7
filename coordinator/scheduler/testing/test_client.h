// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_SCHEDULER_TESTING_TEST_CLIENT_H_
#define KT_COORDINATOR_SCHEDULER_TESTING_TEST_CLIENT_H_

#include <string>
#include <vector>

#include "coordinator/generation/generation.h"
#include "coordinator/scheduler/testing/sim_worker.h"

namespace kt::testing {

// Collects what one request sends and watches the rules of generation.h. One thread.
class TestClient final : public GenerationSink {
 public:
  explicit TestClient(int n) : outputs(n) {}

  void OnEvent(GenerationEvent event) override;
  bool ended() const { return !error.ok() || finished == static_cast<int>(outputs.size()); }
  // Empty, or what is wrong with the output of `request`: equal to it alone, or the beginning of
  // that where it has not ended.
  std::string Compare(const GenerationRequest& request, uint64_t seed) const;

  std::vector<ReferenceOutput> outputs;  // by choice
  absl::Status error;
  int events = 0;
  int finished = 0;       // choices
  int cached_tokens = 0;  // as of the last event
  std::string breach;     // first broken rule
};

}  // namespace kt::testing

#endif  // KT_COORDINATOR_SCHEDULER_TESTING_TEST_CLIENT_H_
