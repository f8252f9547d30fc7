// SPDX-License-Identifier: Apache-2.0
// The whole front end on a free port, before the fakes: the fixture of the HTTP tests.
#ifndef KT_COORDINATOR_HTTP_TEST_SERVER_H_
#define KT_COORDINATOR_HTTP_TEST_SERVER_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "coordinator/http/http_server.h"
#include "coordinator/http/raw_client.h"
#include "coordinator/http/router.h"
#include "tests/testing/fake_generation.h"

namespace kt::http {

class HttpTest : public ::testing::Test {
 protected:
  HttpTest() { options_.port = 0; }

  void Start(kt::testing::FakeGenerator::Options generator = {}, const std::string& api_key = "") {
    generator_ = std::make_unique<kt::testing::FakeGenerator>(&tokenizer_, generator);
    service_ = std::make_unique<api::GenerationService>(
        api::ModelFacts{.name = "org/m", .context_length = 100000, .vocab_size = 257, .created = 5},
        api::ApiDefaults{}, &tokenizer_, &renderer_, generator_.get(), &status_, &metrics_,
        api::GenerationService::Options{});
    openai_ = std::make_unique<api::OpenAiService>(service_.get(), &recorder_);
    router_ = std::make_unique<Router>(openai_.get(), api_key);
    auto server = HttpServer::Start(options_, router_.get(), &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->port();
  }

  // A metric's value, waited for at most 10 s.
  void ExpectMetric(const std::string& name, const std::string& value) {
    const std::string line = name + "{model_name=\"m\"} " + value + "\n";
    for (int i = 0; i < 1000 && metrics_.Serialize().find(line) == std::string::npos; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_THAT(metrics_.Serialize(), ::testing::HasSubstr(line));
  }

  static RawResponse GetOnce(int port, const std::string& path, const std::string& more = "") {
    RawClient client(port);
    client.Get(path, more);
    return client.Read();
  }
  static RawResponse PostOnce(int port, const std::string& path, const std::string& body,
                              const std::string& more = "") {
    RawClient client(port);
    client.Post(path, body, more);
    return client.Read();
  }

  HttpServerOptions options_;
  kt::testing::FakeTokenizer tokenizer_;
  kt::testing::FakeRenderer renderer_;
  kt::testing::FakeStatus status_;
  kt::testing::FakeRecorder recorder_;
  metrics::Metrics metrics_{"m"};
  std::unique_ptr<kt::testing::FakeGenerator> generator_;
  std::unique_ptr<api::GenerationService> service_;
  std::unique_ptr<api::OpenAiService> openai_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
};

}  // namespace kt::http

#endif  // KT_COORDINATOR_HTTP_TEST_SERVER_H_
