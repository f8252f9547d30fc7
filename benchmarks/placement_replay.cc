// SPDX-License-Identifier: Apache-2.0
// What placements are worth on made-up expert traffic (common/placement/testing/replay.h): hit
// rates and modelled cost of static and dynamic ones, as a Markdown table. Exit code 1: a bar is
// missed.
#include <fmt/format.h>

#include <cstdlib>

#include "common/placement/testing/replay.h"

int main(int argc, char** argv) {
  const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  fmt::print(
      "| residents | changes at | traffic | hits uniform | hits frequency | hits dynamic | cost "
      "against uniform | changes | bars |\n|---|---|---|---|---|---|---|---|---|\n");
  bool all_met = true;
  for (kt::ReplayCase replay : kt::ReplayCases()) {
    replay.seed = seed;
    const kt::ReplayResults r = kt::Replay(replay);
    const auto missed = kt::MissedBars(replay, r);
    all_met = all_met && missed.empty();
    fmt::print("| {:.0f} % | {} | {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {} | {} |\n",
               100 * replay.resident_share, replay.background ? "prompts and steps" : "prompts",
               kt::TrafficName(replay), r.uniform.hit_rate, r.frequency.hit_rate,
               r.dynamic.hit_rate, r.dynamic.cost / r.uniform.cost, r.dynamic.changes,
               missed.empty() ? "met" : fmt::format("{}", fmt::join(missed, "; ")));
  }
  return all_met ? 0 : 1;
}
