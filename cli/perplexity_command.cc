// SPDX-License-Identifier: Apache-2.0
#include "cli/perplexity_command.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>

#include "cli/flags.h"
#include "cli/run.h"
#include "cli/selftest/managed_server.h"
#include "cli/selftest/trace_client.h"
#include "common/base/exit_code.h"
#include "common/base/json.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt::cli {
namespace {

struct PerplexityOptions {
  std::string text_file;
  bool json = false;
};

int Fail(int code, const std::string& message) {
  fmt::print(stderr, "kt perplexity: {}\n", message);
  return code;
}

// One window, no BOS: the mean over all tokens but the first.
int PerplexityMain(RunFlags& flags, const PerplexityOptions& o) {
  RunOptions options;
  proto::RuntimeConfig config;
  ConfigError error;
  if (!ConfigureRun(flags, &options, &config, &error)) return Fail(error.exit_code, error.message);
  std::ifstream file(o.text_file, std::ios::binary);
  if (!file) return Fail(kExitUsage, fmt::format("TEXT_FILE {}: cannot be opened", o.text_file));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  auto tokenizer = Tokenizer::Load(config.model().path());
  if (!tokenizer.ok()) return Fail(kExitBadModel, Message(tokenizer.status()));
  auto ids = (*tokenizer)->Encode(text);
  if (!ids.ok())
    return Fail(kExitUsage, fmt::format("TEXT_FILE {}: {}", o.text_file, Message(ids.status())));
  const int context = config.model().context_length();
  if (ids->size() < 2 || ids->size() > static_cast<size_t>(context)) {
    return Fail(kExitUsage, fmt::format("TEXT_FILE {}: has {} tokens; 2 to {} fit the context",
                                        o.text_file, ids->size(), context));
  }
  int exit_code = kExitFailure;
  auto server = ManagedServer::Start(std::move(config), false, &exit_code);
  if (!server.ok()) return Fail(exit_code, Message(server.status()));

  proto::TraceRequest request;
  request.mutable_token_ids()->Add(ids->begin(), ids->end());
  request.set_prompt_logprobs(true);
  auto start = std::chrono::steady_clock::now();
  auto trace = TraceClient((*server)->coordinator_address()).Run(request);
  if (!trace.ok()) return Fail(kExitFailure, Message(trace.status()));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (trace->prompt_logprobs.size() + 1 != ids->size()) {
    return Fail(kExitFailure, fmt::format("{} log-probabilities for {} tokens",
                                          trace->prompt_logprobs.size(), ids->size()));
  }
  double sum = 0;
  for (const proto::TokenLogprob& p : trace->prompt_logprobs)
    sum -= static_cast<double>(p.logprob());
  const double mean = sum / static_cast<double>(trace->prompt_logprobs.size());
  if (o.json) {
    Json out{{"tokens", ids->size()},
             {"predicted", ids->size() - 1},
             {"mean_nll", mean},
             {"perplexity", std::exp(mean)},
             {"seconds", seconds}};
    fmt::print("{}\n", DumpJson(out));
  } else {
    fmt::print(
        "perplexity {:.4f} (mean negative log-likelihood {:.6f} over {} tokens), {:.1f} tokens/s\n",
        std::exp(mean), mean, ids->size() - 1, static_cast<double>(ids->size()) / seconds);
  }
  return kExitOk;
}

}  // namespace

void RegisterPerplexityCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("perplexity", "Perplexity of a text under a model, through all processes");
  auto options = std::make_shared<PerplexityOptions>();
  auto flags = std::make_shared<RunFlags>(command);  // MODEL_DIR comes first
  command->add_option("TEXT_FILE", options->text_file, "UTF-8 text, at most as long as the context")
      ->required()
      ->group("Perplexity");
  command->add_flag("--json", options->json, "print JSON")->group("Perplexity");
  command->callback([=] { *exit_code = PerplexityMain(*flags, *options); });
}

}  // namespace kt::cli
