// SPDX-License-Identifier: Apache-2.0
#include "common/observe/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kt::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTest, RequestsConnectionsAndTokensAreCounted) {
  Metrics metrics("demo");
  metrics.ConnectionOpened();
  metrics.ConnectionOpened();
  metrics.ConnectionClosed();
  metrics.RequestStarted();
  metrics.RequestStarted();
  metrics.RequestEnded(0.2, /*aborted=*/false);
  metrics.ClientDisconnected();
  metrics.RequestEnded(0.2, /*aborted=*/true);
  metrics.AddGenerationTokens(7);
  metrics.AddExpertChoices(3, 5);
  metrics.ObserveTimeToFirstToken(0.02);
  std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("kt:http_connections{model_name=\"demo\"} 1"));
  EXPECT_THAT(text, HasSubstr("kt:num_requests_total{model_name=\"demo\"} 2"));
  EXPECT_THAT(text, HasSubstr("kt:num_live_reqs{model_name=\"demo\"} 0"));
  EXPECT_THAT(text, HasSubstr("kt:num_aborted_requests_total{model_name=\"demo\"} 1"));
  EXPECT_THAT(text, HasSubstr("kt:client_disconnects_total{model_name=\"demo\"} 1"));
  EXPECT_THAT(text, HasSubstr("kt:generation_tokens_total{model_name=\"demo\"} 7"));
  EXPECT_THAT(text, HasSubstr("kt:expert_hits_total{model_name=\"demo\"} 3"));
  EXPECT_THAT(text, HasSubstr("kt:expert_misses_total{model_name=\"demo\"} 5"));
  EXPECT_THAT(text, HasSubstr("kt:time_to_first_token_seconds_count{model_name=\"demo\"} 1"));
  EXPECT_THAT(text, HasSubstr("kt:e2e_request_latency_seconds_count{model_name=\"demo\"} 1"));
}

TEST(MetricsTest, SchedulerFiguresAreASnapshot) {
  Metrics metrics("m");
  SchedulerFigures figures{.running_requests = 3,
                           .queued_requests = 2,
                           .used_tokens = 50,
                           .max_total_tokens = 200,
                           .kv_blocks_used = 4,
                           .kv_blocks_total = 16,
                           .kv_blocks_cached = 7,
                           .cached_states = 5,
                           .cache_hit_rate = 0.75,
                           .cached_tokens = 100};
  metrics.SetScheduler(figures);
  figures.cached_tokens = 110;
  metrics.SetScheduler(figures);
  std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("kt:num_running_reqs{model_name=\"m\"} 3"));
  EXPECT_THAT(text, HasSubstr("kt:num_queue_reqs{model_name=\"m\"} 2"));
  EXPECT_THAT(text, HasSubstr("kt:token_usage{model_name=\"m\"} 0.25"));
  EXPECT_THAT(text, HasSubstr("kt:kv_blocks_used{model_name=\"m\"} 4"));
  EXPECT_THAT(text, HasSubstr("kt:kv_blocks_total{model_name=\"m\"} 16"));
  EXPECT_THAT(text, HasSubstr("kt:kv_blocks_cached{model_name=\"m\"} 7"));
  EXPECT_THAT(text, HasSubstr("kt:cached_states{model_name=\"m\"} 5"));
  EXPECT_THAT(text, HasSubstr("kt:cache_hit_rate{model_name=\"m\"} 0.75"));
  EXPECT_THAT(text, HasSubstr("kt:cached_tokens_total{model_name=\"m\"} 110"));
}

TEST(MetricsTest, WorkersAndWarningsReplaceTheirFormerRows) {
  Metrics metrics("m");
  metrics.SetWorker({.name = "expert-0", .numa_node = 0, .threads = 4, .up = true});
  metrics.SetWorker({.name = "expert-0", .numa_node = 1, .threads = 2, .up = false, .restarts = 1});
  metrics.SetWarnings({"two workers on one node", "two workers on one node"});
  EXPECT_THAT(metrics.Serialize(), HasSubstr("warning=\"two workers on one node\""));
  metrics.SetWarnings({"slow pages"});
  std::string text = metrics.Serialize();
  EXPECT_THAT(text, Not(HasSubstr("numa_node=\"0\"")));
  EXPECT_THAT(
      text, HasSubstr("kt:worker_threads{model_name=\"m\",numa_node=\"1\",worker=\"expert-0\"} 2"));
  EXPECT_THAT(text, Not(HasSubstr("two workers")));
  EXPECT_THAT(text, HasSubstr("kt:warnings{model_name=\"m\"} 1"));
}

}  // namespace
}  // namespace kt::metrics
