// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/reference_routing.h"

#include <set>

#include "common/base/status.h"

namespace kt {

absl::StatusOr<ReferenceRouting> TraceRouting(const Golden& golden, TraceClient& client) {
  ReferenceRouting routing;
  for (const std::string& prompt : golden.prompts()) {
    const std::vector<int32_t>& ids = golden.Find(prompt + ".input_ids")->ints;
    const std::vector<int32_t>& greedy = golden.Find(prompt + ".greedy_ids")->ints;
    proto::TraceRequest request;
    request.mutable_token_ids()->Add(ids.begin(), ids.end());
    request.mutable_token_ids()->Add(greedy.begin(), greedy.end() - 1);
    request.mutable_capture()->set_routing(true);
    KT_ASSIGN_OR_RETURN(Trace trace, client.Run(request));
    for (auto& [layer, captured] : trace.routing) routing[prompt][layer] = std::move(captured.ids);
  }
  return routing;
}

absl::StatusOr<std::vector<std::optional<int>>> FlippedLayers(
    const std::map<int, std::vector<int32_t>>& reference, const Trace& trace, size_t positions) {
  std::vector<std::optional<int>> layers(positions);
  for (const auto& [layer, want] : reference) {
    auto captured = trace.routing.find(layer);
    if (captured == trace.routing.end() || captured->second.ids.empty() ||
        captured->second.ids.size() % positions != 0 || captured->second.ids.size() > want.size()) {
      return Internal("selftest: the routing of layer {} was not captured for {} positions", layer,
                      positions);
    }
    const std::vector<int32_t>& got = captured->second.ids;
    const size_t k = got.size() / positions;
    for (size_t t = 0; t < positions; ++t) {
      auto row = [&](const std::vector<int32_t>& ids) {
        return std::set<int32_t>(ids.begin() + static_cast<long>(t * k),
                                 ids.begin() + static_cast<long>((t + 1) * k));
      };
      if (!layers[t] && row(got) != row(want)) layers[t] = layer;
    }
  }
  return layers;
}

}  // namespace kt
