// SPDX-License-Identifier: Apache-2.0
#include "cli/environment.h"

#include <fmt/format.h>

#include <cstdlib>

namespace kt::cli {

const std::vector<EnvironmentVariable>& EnvironmentTable() {
  constexpr char kNoPython[] = "there is no PyTorch and no JIT compilation here";
  constexpr char kForceIsa[] = "use KT_FORCE_ISA";
  constexpr char kNoHub[] = "nothing is downloaded; give the model's directory";
  static const std::vector<EnvironmentVariable>& table = *new std::vector<EnvironmentVariable>{
      {"KT_FORCE_ISA", true,
       "Kernels of the CPU experts: one row of `kt doctor`'s table; refused when the CPU lacks it"},
      {"KT_EXEC_PREFIX", true,
       "Words put before the command of every process, for an emulator: `qemu-x86_64 -cpu "
       "Haswell`"},
      {"XDG_RUNTIME_DIR", true, "Place of the run's private directory; else `/tmp`"},
      {"XDG_CONFIG_HOME", true,
       "Place of `kt/models.json`, the names of `kt model`; else `~/.config`"},
      {"SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR", true,
       "As --expert-distribution-recorder-dir, which wins"},
      {"HWLOC_XMLFILE", true, "Another machine's topology, for tests"},
      {"KT_KERNEL_CPU_VARIANT", false, kForceIsa},
      {"KT_RAWINT4_BACKEND", false, kForceIsa},
      {"KT_GPTQ_INT4_BACKEND", false, kForceIsa},
      {"KT_MXFP4_BACKEND", false, kForceIsa},
      {"KT_MXFP8_BACKEND", false, kForceIsa},
      {"KT_INT8_VNNI_BACKEND", false, kForceIsa},
      {"KT_KERNEL_DEBUG", false, "use --log-level debug"},
      {"KT_LANG", false, "messages are English"},
      {"SGLANG_KT_HYBRID_TIMING", false, "timings are in /metrics"},
      {"SGLANG_KT_HYBRID_TIMING_DEEP", false, "timings are in /metrics"},
      {"SGLANG_KT_HYBRID_NO_CPU_STREAM", false, "there is no such stream"},
      {"SGLANG_KT_BYPASS_GPU_MOE", false, "use --kt-num-gpu-experts 0"},
      {"SGLANG_KT_LORA_CACHE_DIR", false, "LoRA is not built yet"},
      {"SGLANG_KT_GLM5_NEXT_FP8_TRANSPORT", false, "nothing is computed in FP8"},
      {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", false, "use /health_generate"},
      {"SGLANG_DSV4_MODE", false, "that model is not built yet"},
      {"SGLANG_DSV4_2604_SUBMODE", false, "that model is not built yet"},
      {"SGLANG_V4_USE_TRITON_KERNELS", false, "that model is not built yet"},
      {"SGLANG_ENABLE_JIT_DEEPGEMM", false, kNoPython},
      {"PYTORCH_ALLOC_CONF", false, kNoPython},
      {"CUDA_VISIBLE_DEVICES", false, "the host device is the CPU"},
      {"HF_HOME", false, kNoHub},
      {"HF_ENDPOINT", false, kNoHub},
      {"HF_TOKEN", false, kNoHub},
  };
  return table;
}

std::vector<std::string> EnvironmentNotes() {
  std::vector<std::string> notes;
  for (const EnvironmentVariable& variable : EnvironmentTable()) {
    if (variable.honoured || std::getenv(variable.name.c_str()) == nullptr) continue;
    notes.push_back(fmt::format("environment variable {} has no effect here: {}", variable.name,
                                variable.text));
  }
  return notes;
}

std::string EnvironmentMarkdown() {
  std::string text =
      "\n### Environment\n\n| variable | meaning or reason | here |\n| --- | --- | --- |\n";
  for (const EnvironmentVariable& variable : EnvironmentTable()) {
    text += fmt::format("| `{}` | {} | {} |\n", variable.name, variable.text,
                        variable.honoured ? "works" : "without effect, logged when set");
  }
  return text;
}

}  // namespace kt::cli
