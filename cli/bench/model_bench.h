// SPDX-License-Identifier: Apache-2.0
// Speed of a whole model as a client sees it: time to the first token, prefill and decode rates.
#ifndef KT_CLI_BENCH_MODEL_BENCH_H_
#define KT_CLI_BENCH_MODEL_BENCH_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "common/base/json.h"

namespace kt::cli {

struct ModelBenchOptions {
  std::vector<int> prompt_tokens = {512};  // of a stream alone: time to the first token
  std::vector<int> streams = {1, 8};       // at once: decode
  int decode_prompt_tokens = 128;
  int output_tokens = 64;  // of a decoding stream
  int repeats = 3;
  bool determinism_cost = true;  // measure again without it, where it is on
  bool json = false;
};

// When one stream's tokens came, in seconds of one clock for all streams.
struct StreamTimes {
  struct Event {
    double seconds;
    int tokens;
  };
  double start = 0;
  std::vector<Event> events;  // of one token at least, in order
};

// Tokens of all streams per second while all of them decode: from the last stream's first token to
// the first stream's last one. FailedPrecondition: in that time no token came.
absl::StatusOr<double> DecodeRate(std::span<const StreamTimes> streams);

// One measurement of all repeats.
struct ModelRow {
  std::string what;  // "prefill" or "decode"
  int prompt_tokens = 0, streams = 1, output_tokens = 1;
  std::vector<double> seconds;       // prefill: to the first token, of each repeat
  std::vector<double> tokens_per_s;  // of each repeat

  // best and median; ttft_s and ttft_s_median of prefill rows.
  Json ToJson() const;
};

// Asks the server behind the client with prompts of random tokens below `vocab`, each new. An error
// is the server's, or DecodeRate's.
absl::StatusOr<std::vector<ModelRow>> MeasureModel(const ModelBenchOptions& options, int vocab,
                                                   client::Client& client);

}  // namespace kt::cli

#endif  // KT_CLI_BENCH_MODEL_BENCH_H_
