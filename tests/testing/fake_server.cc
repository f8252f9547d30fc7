// SPDX-License-Identifier: Apache-2.0
// kt-fake-server: the whole API in front of FakeGenerator, to try clients by hand.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <ctime>

#include "common/base/status.h"
#include "coordinator/api/openai_service.h"
#include "coordinator/grpc_api/grpc_server.h"
#include "coordinator/http/http_server.h"
#include "coordinator/http/router.h"
#include "tests/testing/fake_generation.h"

int main(int argc, char** argv) {
  CLI::App app("Serves the API in front of a generator that repeats the prompt");
  kt::http::HttpServerOptions http;
  http.port = 30000;
  std::string api_key, grpc_address;
  int context_length = 4096, step_us = 1000;
  app.add_option("--host", http.host)->capture_default_str();
  app.add_option("--port", http.port, "0: any free one")->capture_default_str();
  app.add_option("--api-key", api_key);
  app.add_option("--grpc", grpc_address, "unix:PATH or HOST:PORT; empty: no gRPC");
  app.add_option("--context-length", context_length)->capture_default_str();
  app.add_option("--step-us", step_us, "microseconds a step takes")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  kt::testing::FakeTokenizer tokenizer;
  kt::testing::FakeRenderer renderer;
  kt::testing::FakeStatus status;
  kt::testing::FakeGenerator generator(&tokenizer, {.step = std::chrono::microseconds(step_us)});
  kt::metrics::Metrics metrics("fake");
  kt::api::GenerationService service({.name = "fake",
                                      .context_length = context_length,
                                      .vocab_size = tokenizer.vocab_size(),
                                      .created = std::time(nullptr)},
                                     {}, &tokenizer, &renderer, &generator, &status, &metrics, {});
  kt::testing::FakeRecorder recorder;
  kt::api::OpenAiService openai(&service, &recorder);
  kt::http::Router router(&openai, api_key);
  auto server = kt::http::HttpServer::Start(http, &router, &metrics);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", kt::Message(server.status()).c_str());
    return 1;
  }
  std::unique_ptr<kt::grpc_api::GrpcServer> grpc;
  if (!grpc_address.empty()) {
    auto started = kt::grpc_api::GrpcServer::Start(
        {.addresses = {grpc_address}, .api_key = api_key}, &service);
    if (!started.ok()) {
      std::fprintf(stderr, "%s\n", kt::Message(started.status()).c_str());
      return 1;
    }
    grpc = *std::move(started);
  }
  std::printf("http://%s:%d/v1\n", http.host.c_str(), (*server)->port());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  status.ready = false;
  (*server)->Drain(std::chrono::seconds(2));
  return 0;
}
