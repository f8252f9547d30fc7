// SPDX-License-Identifier: Apache-2.0
#include "cli/presets.h"

#include <fmt/format.h>

#include <algorithm>

#include "absl/strings/match.h"

namespace kt::cli {
namespace {

using Flags = std::vector<PresetFlag>;

Flags operator+(Flags a, const Flags& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

PresetFlag PrefillThreshold(const char* tokens) {
  return {"kt-gpu-prefill-token-threshold", tokens};
}

std::vector<Preset> MakeTable() {
  const Flags mixed = {{"enable-mixed-chunk"}, {"enable-p2p-check"}};
  const Flags deepseek_v3 = {{"kt-num-gpu-experts", "1"},
                             {"attention-backend", "triton"},
                             {"disable-shared-experts-fusion"}};
  const Flags deepseek_v32 =
      Flags{{"attention-backend", "flashinfer"}, {"fp8-gemm-backend", "triton"},
            {"max-total-tokens", "100000"},      {"max-running-requests", "16"},
            {"chunked-prefill-size", "32768"},   {"mem-fraction-static", "0.80"},
            {"watchdog-timeout", "3000"}} +
      mixed;
  const Flags minimax = {PrefillThreshold("4096"),
                         {"fp8-gemm-backend", "triton"},
                         {"tool-call-parser", "minimax-m2"},
                         {"reasoning-parser", "minimax-append-think"}};
  const Flags large = Flags{{"kt-enable-dynamic-expert-update"},
                            {"attention-backend", "flashinfer"},
                            {"chunked-prefill-size", "16384"},
                            {"trust-remote-code"}} +
                      mixed;
  const Flags glm47 =
      large + Flags{{"disable-shared-experts-fusion"}, {"watchdog-timeout", "3000"}};
  return {
      {"DeepSeek-V3-0324", {"deepseek-v3", "dsv3", "v3"}, deepseek_v3},
      {"DeepSeek-R1-0528", {"deepseek-r1", "r1-0528", "r1"}, deepseek_v3},
      {"DeepSeek-V3.2", {"v3.2"}, deepseek_v32 + Flags{PrefillThreshold("4096")}},
      {"Kimi-K2-Thinking", {"kimi", "k2"}, deepseek_v32 + Flags{PrefillThreshold("400")}},
      {"Kimi-K2.5", {"k2.5"}, {{"chunked-prefill-size", "32658"}, {"max-total-tokens", "50000"}}},
      {"MiniMax-M2", {"m2"}, minimax},
      {"MiniMax-M2.1", {"m2.1"}, minimax},
      {"MiniMax-M2.5", {"m2.5"}, {PrefillThreshold("400"), {"mem-fraction-static", "0.94"}}},
      {"MiniMax-M2.7", {"m2.7"}, minimax},
      {"GLM-4.7",
       {"glm47"},
       glm47 + Flags{{"mem-fraction-static", "0.80"},
                     {"max-running-requests", "2"},
                     {"max-total-tokens", "32768"},
                     {"tool-call-parser", "glm47"},
                     {"reasoning-parser", "glm45"},
                     PrefillThreshold("1024")}},
      {"GLM-4.7-FP8",
       {"glm47-fp8"},
       glm47 + Flags{{"mem-fraction-static", "0.75"},
                     {"max-running-requests", "4"},
                     {"max-total-tokens", "100000"},
                     {"fp8-gemm-backend", "triton"},
                     PrefillThreshold("2048")}},
      {"GLM-5",
       {"glm5"},
       {PrefillThreshold("1024"),
        {"mem-fraction-static", "0.75"},
        {"max-total-tokens", "128000"},
        {"fp8-gemm-backend", "cutlass"}}},
      {"Qwen3-235B-A22B",
       {"qwen3-235b"},
       large + Flags{{"kt-expert-placement-strategy", "uniform"},
                     {"mem-fraction-static", "0.80"},
                     {"max-running-requests", "4"},
                     {"max-total-tokens", "100000"},
                     PrefillThreshold("2048")}},
      {"Qwen3-30B-A3B", {"qwen3-30b"}, {PrefillThreshold("4096")}},
      {"Qwen3-Coder-Next",
       {"qwen3-coder"},
       {PrefillThreshold("2048"),
        {"attention-backend", "triton"},
        {"max-total-tokens", "256000"},
        {"tool-call-parser", "qwen3_coder"}}},
      {"Qwen3.5-397B-A17B",
       {"qwen3.5"},
       {{"kt-num-gpu-experts", "1"}, {"mem-fraction-static", "0.98"}}},
  };
}

bool SameName(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase({a.data(), a.size()}, {b.data(), b.size()});
}

}  // namespace

const std::vector<Preset>& PresetTable() {
  static const std::vector<Preset>& table = *new std::vector<Preset>(MakeTable());
  return table;
}

const Preset* FindPreset(std::string_view name) {
  for (const Preset& preset : PresetTable()) {
    auto same = [name](const std::string& alias) { return SameName(alias, name); };
    if (same(preset.name) || std::any_of(preset.aliases.begin(), preset.aliases.end(), same))
      return &preset;
  }
  return nullptr;
}

std::string PresetsMarkdown() {
  std::string text = "| model | also | flags |\n| --- | --- | --- |\n";
  for (const Preset& preset : PresetTable()) {
    std::vector<std::string> flags;
    for (const PresetFlag& flag : preset.flags)
      flags.push_back("--" + flag.name + (flag.value == "true" ? "" : " " + flag.value));
    text += fmt::format("| `{}` | `{}` | `{}` |\n", preset.name, fmt::join(preset.aliases, "` `"),
                        fmt::join(flags, "` `"));
  }
  return text;
}

}  // namespace kt::cli
