// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/bench/bench_command.h"
#include "cli/bench/model_bench.h"
#include "cli/run.h"
#include "cli/selftest/managed_server.h"
#include "common/base/exit_code.h"
#include "common/base/status.h"
#include "common/model/model_config.h"

namespace kt::cli {
namespace {

int Fail(int code, const std::string& message) {
  fmt::print(stderr, "kt bench model: {}\n", message);
  return code;
}

// Whether the server will take what is to be measured.
absl::Status CheckFits(const ModelBenchOptions& o, const proto::RuntimeConfig& config) {
  const int context = config.model().context_length();
  const int longest =
      std::max(*std::max_element(o.prompt_tokens.begin(), o.prompt_tokens.end()) + 1,
               o.decode_prompt_tokens + o.output_tokens);
  if (longest > context) {
    return InvalidArgument(
        "--prompt-tokens, --decode-prompt-tokens, --output-tokens: {} tokens are longer than the "
        "context of {}",
        longest, context);
  }
  const int running = config.scheduler().max_running_requests();
  const int streams = *std::max_element(o.streams.begin(), o.streams.end());
  if (streams > running) {
    return InvalidArgument("--streams {}: --max-running-requests {} lets no more run at once",
                           streams, running);
  }
  return absl::OkStatus();
}

// Starts the processes and measures; stops them again.
absl::StatusOr<std::vector<ModelRow>> Measure(const ModelBenchOptions& o,
                                              const proto::RuntimeConfig& config, int vocab,
                                              int* exit_code) {
  fmt::print(stderr, "starting, {}deterministic\n", config.device().deterministic() ? "" : "not ");
  KT_ASSIGN_OR_RETURN(const std::unique_ptr<ManagedServer> server,
                      ManagedServer::Start(config, false, exit_code));
  fmt::print(stderr, "measuring\n");
  client::Client client({.target = server->api_address(), .api_key = config.server().api_key()});
  return MeasureModel(o, vocab, client);
}

void PrintRow(const Json& row) {
  const bool prefill = row["what"] == "prefill";
  fmt::print("{:<8} {:>13} {:>8} {:>14} {:>14} {:>9.1f} {:>9.1f}", row["what"].get<std::string>(),
             row["prompt_tokens"].get<int>(), row["streams"].get<int>(),
             prefill ? fmt::format("{:.3f}", row["ttft_s"].get<double>()) : "",
             prefill ? fmt::format("{:.3f}", row["ttft_s_median"].get<double>()) : "",
             row["tokens_per_s"].get<double>(), row["tokens_per_s_median"].get<double>());
  if (row.contains("determinism_cost")) {
    fmt::print(" {:>17.1f} {:>9.2f} x", row["not_deterministic_tokens_per_s"].get<double>(),
               row["determinism_cost"].get<double>());
  }
  fmt::print("\n");
}

int ModelMain(RunFlags& flags, const ModelBenchOptions& o) {
  RunOptions options;
  proto::RuntimeConfig config;
  ConfigError error;
  if (!ConfigureRun(flags, &options, &config, &error)) return Fail(error.exit_code, error.message);
  if (absl::Status fits = CheckFits(o, config); !fits.ok()) return Fail(kExitUsage, Message(fits));
  const auto model = LoadModelConfig(config.model().path());
  if (!model.ok()) return Fail(kExitBadModel, Message(model.status()));
  int exit_code = kExitFailure;
  const auto measured = Measure(o, config, model->vocab, &exit_code);
  if (!measured.ok()) return Fail(exit_code, Message(measured.status()));
  Json rows = Json::array();
  for (const ModelRow& row : *measured) rows.push_back(row.ToJson());
  if (o.determinism_cost && config.device().deterministic()) {
    config.mutable_device()->set_deterministic(false);
    const auto freely = Measure(o, config, model->vocab, &exit_code);
    if (!freely.ok()) return Fail(exit_code, Message(freely.status()));
    for (size_t i = 0; i < rows.size(); ++i) {
      const double rate = (*freely)[i].ToJson()["tokens_per_s"].get<double>();
      rows[i]["not_deterministic_tokens_per_s"] = rate;
      rows[i]["determinism_cost"] = rate / rows[i]["tokens_per_s"].get<double>();
    }
  }
  if (o.json) {
    fmt::print("{}\n",
               DumpJson({{"model", config.model().served_model_name()}, {"rows", rows}}, 1));
    return kExitOk;
  }
  fmt::print("{:<8} {:>13} {:>8} {:>14} {:>14} {:>9} {:>9} {:>17} {:>11}\n", "", "prompt tokens",
             "streams", "first token, s", "median", "tokens/s", "median", "not deterministic",
             "cost");
  for (const Json& row : rows) PrintRow(row);
  return kExitOk;
}

}  // namespace

void RegisterBenchModelCommand(CLI::App& bench, int* exit_code) {
  CLI::App* command = bench.add_subcommand(
      "model",
      "Time a model through all processes, as clients see it: first token and prefill rate of a "
      "prompt alone, decode rate of streams at once, and the same without --deterministic. Takes "
      "the flags of kt run.");
  auto options = std::make_shared<ModelBenchOptions>();
  auto flags = std::make_shared<RunFlags>(command);  // MODEL_DIR comes first
  const auto list = [&](const char* name, std::vector<int>* values, int max, const char* text) {
    command->add_option(name, *values, text)
        ->delimiter(',')
        ->check(CLI::Range(1, max))
        ->capture_default_str()
        ->group("Benchmark");
  };
  const auto number = [&](const char* name, int* value, int min, int max, const char* text) {
    command->add_option(name, *value, text)
        ->check(CLI::Range(min, max))
        ->capture_default_str()
        ->group("Benchmark");
  };
  list("--prompt-tokens", &options->prompt_tokens, 1 << 20, "Lengths of the prompts to prefill");
  list("--streams", &options->streams, 4096, "Numbers of streams that decode at once");
  number("--decode-prompt-tokens", &options->decode_prompt_tokens, 1, 1 << 20,
         "Length of a decoding stream's prompt");
  number("--output-tokens", &options->output_tokens, 2, 1 << 20, "Tokens of a decoding stream");
  number("--repeats", &options->repeats, 1, 1000, "Measurements of each row, in turn");
  command
      ->add_flag("--no-determinism-cost{false}", options->determinism_cost,
                 "Leave out the second start, with --deterministic off")
      ->group("Benchmark");
  command->add_flag("--json", options->json, "Print JSON")->group("Benchmark");
  command->callback([=] { *exit_code = ModelMain(*flags, *options); });
}

}  // namespace kt::cli
