// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/golden.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "common/base/status.h"
#include "common/weights/safetensors.h"

namespace kt {
namespace {

template <typename T>
std::vector<T> Values(const SafetensorsEntry& e) {
  std::vector<T> out(e.data.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), e.data.data(), out.size() * sizeof(T));
  return out;
}

absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound("{}: cannot be opened", path);
  return std::vector<uint8_t>(std::istreambuf_iterator<char>(file),
                              std::istreambuf_iterator<char>());
}

}  // namespace

absl::StatusOr<Golden> Golden::Load(const std::string& dir) {
  Golden golden;
  KT_ASSIGN_OR_RETURN(std::vector<uint8_t> bytes, ReadFile(dir + "/golden.safetensors"));
  auto entries = ParseSafetensors(bytes);
  if (!entries.ok()) return Annotate(entries.status(), dir + "/golden.safetensors");
  for (const SafetensorsEntry& e : *entries) {
    if (e.shape.empty() || e.data.empty())
      return InvalidArgument("{}/golden.safetensors: {} is empty or a scalar", dir, Quoted(e.name));
    GoldenTensor tensor{.shape = e.shape};
    if (e.dtype == DType::kF32) tensor.values = Values<float>(e);
    if (e.dtype == DType::kI32) tensor.ints = Values<int32_t>(e);
    golden.tensors_.emplace(e.name, std::move(tensor));
  }
  KT_ASSIGN_OR_RETURN(Json json, ReadJsonFile(dir + "/golden.json"));
  for (const char* prompt : {"short", "medium", "long"}) {
    std::string name = prompt;
    const GoldenTensor* ids = golden.Find(name + ".input_ids");
    if (ids == nullptr) continue;
    const GoldenTensor* logits = golden.Find(name + ".logits");
    const GoldenTensor* greedy = golden.Find(name + ".greedy_ids");
    if (ids->ints.empty() || logits == nullptr || logits->shape.size() != 2 ||
        logits->values.empty() || greedy == nullptr || greedy->ints.empty()) {
      return InvalidArgument(
          "{}/golden.safetensors: {} needs input_ids, logits [n, vocab] and greedy_ids", dir, name);
    }
    golden.prompts_.push_back(name);
    if (!json.contains("noise_bf16") || !json["noise_bf16"].is_object() ||
        !json["noise_bf16"].contains(name))
      continue;
    const Json& noise = json["noise_bf16"][name];
    Bf16Noise n;
    KT_ASSIGN_OR_RETURN(auto mean, JsonNumber(noise, "mean_abs_last4", "golden.json: noise_bf16"));
    KT_ASSIGN_OR_RETURN(auto max, JsonNumber(noise, "max_abs_last4", "golden.json: noise_bf16"));
    KT_ASSIGN_OR_RETURN(auto max_greedy,
                        JsonNumber(noise, "max_abs_greedy", "golden.json: noise_bf16"));
    n.mean_abs = mean.value_or(0);
    n.max_abs = std::max(max.value_or(0), max_greedy.value_or(0));
    golden.noise_[name] = n;
  }
  if (golden.prompts_.empty())
    return InvalidArgument("{}/golden.safetensors: no prompt (short.input_ids, ...) in it", dir);
  return golden;
}

const GoldenTensor* Golden::Find(const std::string& name) const {
  auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

Bf16Noise Golden::noise(const std::string& prompt) const {
  auto it = noise_.find(prompt);
  return it == noise_.end() ? Bf16Noise{} : it->second;
}

std::vector<int> Golden::routed_layers() const {
  std::vector<int> layers;
  for (int l = 0; l < 1024; ++l) {
    if (Find("short.routing." + std::to_string(l) + ".expert_ids") != nullptr) layers.push_back(l);
  }
  return layers;
}

std::vector<int> Golden::indexed_layers(const std::string& prompt) const {
  std::vector<int> layers;
  for (int l = 0; l < 1024; ++l) {
    if (Find(fmt::format("{}.indexer.{}.last_topk", prompt, l)) != nullptr) layers.push_back(l);
  }
  return layers;
}

}  // namespace kt
