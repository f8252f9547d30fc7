// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/flags.h"
#include "cli/run.h"
#include "cli/selftest/checks.h"
#include "cli/selftest/managed_server.h"
#include "common/base/exit_code.h"
#include "common/base/status.h"
#include "common/weights/weight_summary.h"

namespace kt::cli {
namespace {

struct SelftestOptions {
  std::string golden_dir;
  bool json = false;
  bool show_log = false;
};

void PrintTable(const std::vector<CheckRow>& rows) {
  size_t width = 5;
  for (const CheckRow& r : rows) width = std::max(width, r.name.size());
  fmt::print("{:<{}}  {:>12}  {:>10}  result\n", "check", width, "value", "bound");
  for (const CheckRow& r : rows) {
    fmt::print("{:<{}}  {:>12.6g}  {:>10.4g}  {}{}{}\n", r.name, width, r.value, r.bound,
               r.ok ? "ok" : "FAILED", r.note.empty() ? "" : "  ", r.note);
  }
  auto failed = std::count_if(rows.begin(), rows.end(), [](const CheckRow& r) { return !r.ok; });
  fmt::print("{} of {} checks hold\n", rows.size() - static_cast<size_t>(failed), rows.size());
}

void PrintJson(const std::vector<CheckRow>& rows, bool ok) {
  Json out{{"ok", ok}, {"checks", Json::array()}};
  for (const CheckRow& r : rows) {
    out["checks"].push_back(
        {{"name", r.name}, {"value", r.value}, {"bound", r.bound}, {"ok", r.ok}, {"note", r.note}});
  }
  fmt::print("{}\n", DumpJson(out, 2));
}

int Fail(int code, const std::string& message) {
  fmt::print(stderr, "kt selftest: {}\n", message);
  return code;
}

int Report(const std::vector<CheckRow>& rows, const SelftestOptions& o) {
  bool ok = std::all_of(rows.begin(), rows.end(), [](const CheckRow& r) { return r.ok; });
  if (o.json) {
    PrintJson(rows, ok);
  } else {
    PrintTable(rows);
  }
  return ok ? kExitOk : kExitFailure;
}

// The device's and the expert workers' kernels against the scalar reference, layer by layer.
int CheckWithoutGolden(proto::RuntimeConfig config, const std::string& why,
                       const SelftestOptions& o) {
  int exit_code = kExitFailure;
  config.set_selftest(false);  // all layers are checked below
  auto server = ManagedServer::Start(std::move(config), o.show_log, &exit_code);
  if (!server.ok()) return Fail(exit_code, Message(server.status()));
  TraceClient client((*server)->coordinator_address());
  auto rows = RunSelfChecks(client);
  if (!rows.ok()) return Fail(kExitFailure, Message(rows.status()));
  if (!why.empty()) rows->push_back({"golden results", 0, 0, true, why});
  return Report(*rows, o);
}

int SelftestMain(RunFlags& flags, const SelftestOptions& o) {
  RunOptions options;
  proto::RuntimeConfig config;
  ConfigError error;
  if (!ConfigureRun(flags, &options, &config, &error)) return Fail(error.exit_code, error.message);
  const std::string golden_dir = o.golden_dir.empty() ? options.model : o.golden_dir;
  const bool has_golden =
      !o.golden_dir.empty() || std::filesystem::exists(golden_dir + "/golden.json");
  if (!has_golden) return CheckWithoutGolden(std::move(config), "", o);
  if (RoundedBits(config.experts().method()) != 0) {
    const std::string why =
        fmt::format("not compared: kt-method {} rounds the experts' weights and activations",
                    config.experts().method());
    if (!o.golden_dir.empty()) return Fail(kExitUsage, "--golden: " + why);
    return CheckWithoutGolden(std::move(config), why, o);
  }
  auto golden = Golden::Load(golden_dir);
  if (!golden.ok()) return Fail(kExitUsage, "--golden: " + Message(golden.status()));
  int exit_code = kExitFailure;
  std::optional<ReferenceRouting> reference;
  if (config.device().activation_dtype() != "float32") {
    proto::RuntimeConfig float32 = config;
    float32.mutable_device()->set_activation_dtype("float32");
    auto server = ManagedServer::Start(std::move(float32), o.show_log, &exit_code);
    if (!server.ok()) return Fail(exit_code, Message(server.status()));
    TraceClient client((*server)->coordinator_address());
    auto traced = TraceRouting(*golden, client);
    if (!traced.ok()) return Fail(kExitFailure, Message(traced.status()));
    reference = *std::move(traced);
  }
  auto server = ManagedServer::Start(std::move(config), o.show_log, &exit_code);
  if (!server.ok()) return Fail(exit_code, Message(server.status()));
  TraceClient client((*server)->coordinator_address());
  auto rows = RunGoldenChecks(*golden, reference ? &*reference : nullptr, client);
  if (!rows.ok()) return Fail(kExitFailure, Message(rows.status()));
  return Report(*rows, o);
}

}  // namespace

void RegisterSelftestCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "selftest", "Start all processes, compare their results with golden ones, and stop them");
  auto options = std::make_shared<SelftestOptions>();
  command
      ->add_option("--golden", options->golden_dir,
                   "directory with golden.json and golden.safetensors; default: the model's; where "
                   "there are none, and with a kt-method that rounds (AMXINT8, AMXINT4), "
                   "every worker compares its kernels with the scalar reference on every layer")
      ->group("Selftest");
  command->add_flag("--json", options->json, "print JSON")->group("Selftest");
  command->add_flag("--show-log", options->show_log, "show the server's log")->group("Selftest");
  auto flags = std::make_shared<RunFlags>(command);
  command->callback([=] { *exit_code = SelftestMain(*flags, *options); });
}

}  // namespace kt::cli
