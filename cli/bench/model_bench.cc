// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/model_bench.h"

#include <algorithm>
#include <limits>
#include <random>
#include <thread>

#include "cli/bench/machine_limits.h"
#include "cli/bench/median.h"
#include "common/base/status.h"
#include "proto/generation.pb.h"

namespace kt::cli {
namespace {

api::GenerateRequest RandomRequest(int prompt_tokens, int output_tokens, int vocab,
                                   std::mt19937_64& rng) {
  api::GenerateRequest request;
  for (int i = 0; i < prompt_tokens; ++i)
    request.mutable_tokens()->add_ids(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab)));
  request.set_max_tokens(output_tokens);
  request.set_temperature(0);
  request.set_ignore_eos(true);
  return request;
}

absl::StatusOr<StreamTimes> Stream(const api::GenerateRequest& request, client::Client& client) {
  StreamTimes times{.start = SecondsNow()};
  KT_RETURN_IF_ERROR(client.Generate(request, [&](const api::GenerateEvent& event) {
    if (event.token_ids_size() > 0) times.events.push_back({SecondsNow(), event.token_ids_size()});
    return true;
  }));
  if (times.events.empty()) return FailedPrecondition("the server sent no token");
  return times;
}

// All streams at once, a prompt of its own each.
absl::StatusOr<std::vector<StreamTimes>> Streams(int count, int prompt_tokens, int output_tokens,
                                                 int vocab, std::mt19937_64& rng,
                                                 client::Client& client) {
  std::vector<absl::StatusOr<StreamTimes>> results(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&client, &result = results[i],
                          request = RandomRequest(prompt_tokens, output_tokens, vocab, rng)] {
      result = Stream(request, client);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<StreamTimes> streams;
  for (absl::StatusOr<StreamTimes>& result : results) {
    KT_RETURN_IF_ERROR(result.status());
    streams.push_back(*std::move(result));
  }
  return streams;
}

}  // namespace

absl::StatusOr<double> DecodeRate(std::span<const StreamTimes> streams) {
  double begin = 0, end = std::numeric_limits<double>::infinity();
  for (const StreamTimes& stream : streams) {
    begin = std::max(begin, stream.events.front().seconds);
    end = std::min(end, stream.events.back().seconds);
  }
  int tokens = 0;
  for (const StreamTimes& stream : streams) {
    for (const StreamTimes::Event& event : stream.events) {
      if (event.seconds > begin && event.seconds <= end) tokens += event.tokens;
    }
  }
  if (tokens == 0) {
    return FailedPrecondition(
        "{} streams never decoded at the same time; use more --output-tokens or a shorter prompt",
        streams.size());
  }
  return tokens / (end - begin);
}

Json ModelRow::ToJson() const {
  Json row{{"what", what},
           {"prompt_tokens", prompt_tokens},
           {"streams", streams},
           {"output_tokens", output_tokens},
           {"tokens_per_s", *std::max_element(tokens_per_s.begin(), tokens_per_s.end())},
           {"tokens_per_s_median", Median(tokens_per_s)}};
  if (!seconds.empty()) {
    row["ttft_s"] = *std::min_element(seconds.begin(), seconds.end());
    row["ttft_s_median"] = Median(seconds);
  }
  return row;
}

absl::StatusOr<std::vector<ModelRow>> MeasureModel(const ModelBenchOptions& options, int vocab,
                                                   client::Client& client) {
  std::vector<ModelRow> rows;
  for (int tokens : options.prompt_tokens)
    rows.push_back({.what = "prefill", .prompt_tokens = tokens});
  for (int streams : options.streams) {
    rows.push_back({.what = "decode",
                    .prompt_tokens = options.decode_prompt_tokens,
                    .streams = streams,
                    .output_tokens = options.output_tokens});
  }
  std::mt19937_64 rng(1);
  KT_RETURN_IF_ERROR(Stream(RandomRequest(16, 4, vocab, rng), client).status());  // wakes all up
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (ModelRow& row : rows) {
      KT_ASSIGN_OR_RETURN(
          const std::vector<StreamTimes> streams,
          Streams(row.streams, row.prompt_tokens, row.output_tokens, vocab, rng, client));
      if (row.what == "prefill") {
        row.seconds.push_back(streams[0].events[0].seconds - streams[0].start);
        row.tokens_per_s.push_back(row.prompt_tokens / row.seconds.back());
      } else {
        KT_ASSIGN_OR_RETURN(const double rate, DecodeRate(streams));
        row.tokens_per_s.push_back(rate);
      }
    }
  }
  return rows;
}

}  // namespace kt::cli
