// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>

#include "cli/bench/bench_format.h"
#include "cli/bench/bench_shape.h"
#include "cli/bench/kernel_bench.h"
#include "common/base/exit_code.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

// The columns of the table; the rates of the machine stand behind those of the kernel.
constexpr char kHeader[] =
    "format       shape        tokens threads         ms     median   GB/s     of  GFLOP/s       "
    "of  "
    " limit ms by       share  median\n";

void PrintRow(const Json& r) {
  const auto number = [&](const char* field) { return r[field].get<double>(); };
  fmt::print(
      "{:<12} {:<12} {:>6} {:>7} {:>10.3f} {:>10.3f} {:>6.1f} {:>6.1f} {:>8.1f} {:>8.1f} {:>10.3f} "
      "{:<7} {:>4.0f} % {:>5.0f} %\n",
      r["format"].get<std::string>(), r["shape"].get<std::string>(), r["tokens"].get<int>(),
      r["threads"].get<int>(), number("ms"), number("ms_median"), number("gbytes_per_s"),
      number("machine_gbytes_per_s"), number("gflops"), number("machine_gflops"), number("limit"),
      r["limited_by"].get<std::string>(), number("share_of_limit") * 100,
      number("share_of_limit_median") * 100);
  std::fflush(stdout);
}

int KernelsMain(const KernelBenchOptions& options, bool json) {
  if (!json) fmt::print("{}", kHeader);
  Json rows = Json::array();
  const absl::Status status = RunKernelBench(options, [&](const KernelRow& row) {
    rows.push_back(row.ToJson());
    if (!json) PrintRow(rows.back());
  });
  if (json) fmt::print("{}\n", DumpJson(rows, 1));
  if (status.ok()) return kExitOk;
  fmt::print(stderr, "kt bench kernels: {}\n", Message(status));
  return absl::IsInvalidArgument(status) ? kExitUsage : ExitCodeFor(status);
}

}  // namespace

void RegisterBenchCommand(CLI::App& app, int* exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed on this machine");
  bench->require_subcommand(1);

  CLI::App* kernels = bench->add_subcommand(
      "kernels",
      "Time MoE layers on the CPU against what it reads and multiplies at best in the same run. "
      "KT_FORCE_ISA picks the kernels.");
  auto options = std::make_shared<KernelBenchOptions>();
  auto json = std::make_shared<bool>(false);
  std::vector<std::string> formats;
  for (const BenchFormat& format : BenchFormats()) formats.emplace_back(format.name);
  kernels
      ->add_option("--format", options->formats,
                   fmt::format("Weights, of: {}; all without it", fmt::join(formats, ", ")))
      ->delimiter(',');
  kernels->add_option("--shape", options->shapes, BenchShapeNames())
      ->delimiter(',')
      ->capture_default_str();
  kernels->add_option("--tokens", options->tokens, "Tokens of a call")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  kernels
      ->add_option("--threads", options->threads,
                   "Threads, each on a core; 1 and all usable cores without it")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  kernels->add_option("--seconds", options->seconds, "Time for every row; two calls at least")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  kernels
      ->add_option("--weights", options->weights,
                   "Directory of safetensors with the experts to run instead of random ones, for "
                   "one --format and one --shape: tensors "
                   "model.layers.L.mlp.experts.E.{gate,up,down}_proj.weight and .weight_scale in "
                   "the format's bytes")
      ->check(CLI::ExistingDirectory);
  kernels->add_option("--dump", options->dump,
                      "Safetensors file to write one call's rows, routing and results to, by "
                      "number of tokens: T.x, T.ids, T.weights, T.y");
  kernels->add_flag("--json", *json, "Print JSON: an array of rows, times in ms");
  kernels->callback([=] { *exit_code = KernelsMain(*options, *json); });
}

}  // namespace kt::cli
