// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "common/base/status.h"
#include "common/model/family.h"
#include "common/weights/checkpoint.h"
#include "common/weights/safetensors.h"

namespace kt {
namespace {

using Shape = std::vector<int64_t>;

struct Expected {
  Shape shape;
  bool may_be_f32 = false;  // norms, biases and router; matrices are BF16
};
using Manifest = std::map<std::string, Expected>;

// Empty names stand for tensors that the model does not have.
void Add(Manifest& manifest, const std::string& name, Shape shape, bool may_be_f32) {
  if (!name.empty()) manifest[name] = {std::move(shape), may_be_f32};
}
void AddMatrix(Manifest& m, const std::string& name, int64_t out, int64_t in) {
  Add(m, name, {out, in}, false);
}
void AddVector(Manifest& m, const std::string& name, int64_t size) { Add(m, name, {size}, true); }

void AddFfn(Manifest& m, const std::string& gate, const std::string& up, const std::string& down,
            int64_t width, int64_t intermediate) {
  AddMatrix(m, gate, intermediate, width);
  AddMatrix(m, up, intermediate, width);
  AddMatrix(m, down, width, intermediate);
}

void AddLayer(Manifest& m, const ModelConfig& config, const LayerConfig& layer,
              const LayerTensors& names) {
  const AttentionConfig& a = config.attentions[static_cast<size_t>(layer.attention)];
  int64_t q = int64_t{a.num_heads} * a.head_dim, kv = int64_t{a.num_kv_heads} * a.head_dim;
  AddVector(m, names.input_norm, config.hidden);
  AddVector(m, names.post_attention_norm, config.hidden);
  AddMatrix(m, names.q, q, config.hidden);
  AddMatrix(m, names.k, kv, config.hidden);
  AddMatrix(m, names.v, kv, config.hidden);
  AddMatrix(m, names.o, config.hidden, q);
  AddVector(m, names.q_bias, q);
  AddVector(m, names.k_bias, kv);
  AddVector(m, names.v_bias, kv);
  AddVector(m, names.q_norm, a.head_dim);
  AddVector(m, names.k_norm, a.head_dim);
  AddFfn(m, names.gate, names.up, names.down, config.hidden, layer.dense_intermediate);
  if (!layer.moe.has_value()) return;
  const MoeConfig& moe = config.moes[static_cast<size_t>(*layer.moe)];
  Add(m, names.router, {moe.num_experts, config.hidden}, true);
  AddVector(m, names.correction_bias, moe.num_experts);
  AddFfn(m, names.shared_gate, names.shared_up, names.shared_down, config.hidden,
         moe.shared_intermediate);
  for (const LayerTensors::Expert& e : names.experts)
    AddFfn(m, e.gate, e.up, e.down, moe.width, moe.intermediate);
}

Manifest BuildManifest(const ModelConfig& config) {
  ModelTensors names = TensorNames(config);
  Manifest m;
  AddMatrix(m, names.embedding, config.vocab, config.hidden);
  AddMatrix(m, names.lm_head, config.vocab, config.hidden);
  AddVector(m, names.final_norm, config.hidden);
  for (size_t l = 0; l < config.layers.size(); ++l)
    AddLayer(m, config, config.layers[l], names.layers[l]);
  return m;
}

bool IsSkipped(const ModelConfig& config, const std::string& name) {
  std::string_view pattern = FindFamily(config.model_type)->names->layer;
  for (int i = 0; i < config.mtp_layers; ++i) {
    if (name.starts_with(
            fmt::format(fmt::runtime(pattern), config.layers.size() + static_cast<size_t>(i))))
      return true;
  }
  return false;
}

// The first fault of each kind and how many more there are.
class Faults {
 public:
  void Add(const char* kind, std::string message) {
    auto it =
        std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& k) { return k.name == kind; });
    if (it == kinds_.end()) {
      kinds_.push_back({kind, std::move(message), 0});
    } else {
      ++it->more;
    }
  }
  absl::Status ToStatus(const std::string& dir) const {
    if (kinds_.empty()) return absl::OkStatus();
    std::string text;
    for (const Kind& k : kinds_) {
      text += text.empty() ? "" : "; ";
      text += k.message;
      if (k.more > 0) text += fmt::format(" (and {} more {})", k.more, k.name);
    }
    return InvalidArgument("{}: weights do not fit config.json: {}", dir, text);
  }

 private:
  struct Kind {
    std::string name, message;
    int more;
  };
  std::vector<Kind> kinds_;
};

std::string Describe(DType dtype, const Shape& shape) {
  return fmt::format("{} [{}]", DTypeName(dtype), fmt::join(shape, ", "));
}

void CheckTensor(const std::string& name, const Expected& expected, const TensorInfo& found,
                 Faults& faults) {
  if (found.shape != expected.shape) {
    faults.Add("wrong shapes", fmt::format("{}: tensor {} is {}, expected {}", found.file,
                                           Quoted(name), Describe(found.dtype, found.shape),
                                           Describe(DType::kBF16, expected.shape)));
  } else if (found.dtype != DType::kBF16 && !(expected.may_be_f32 && found.dtype == DType::kF32)) {
    faults.Add(
        "wrong dtypes",
        fmt::format("{}: tensor {} is {}, which no engine serves; expected {}", found.file,
                    Quoted(name), DTypeName(found.dtype),
                    expected.may_be_f32 ? "BF16 or F32" : "BF16 (convert the checkpoint to BF16)"));
  }
}

}  // namespace

absl::Status CheckManifest(const ModelConfig& config, const Checkpoint& checkpoint) {
  Manifest manifest = BuildManifest(config);
  Faults faults;
  for (const auto& [name, expected] : manifest) {
    const TensorInfo* found = checkpoint.Find(name);
    if (found == nullptr) {
      faults.Add("missing", fmt::format("tensor {} ({}) is missing", Quoted(name),
                                        Describe(DType::kBF16, expected.shape)));
    } else {
      CheckTensor(name, expected, *found, faults);
    }
  }
  for (const auto& [name, info] : checkpoint.tensors()) {
    if (manifest.contains(name) || IsSkipped(config, name)) continue;
    bool tied_head =
        config.tie_word_embeddings && name == FindFamily(config.model_type)->names->lm_head;
    faults.Add(
        "unexpected",
        fmt::format(
            "{}: tensor {} is not expected{}", info.file, Quoted(name),
            tied_head
                ? ", as config.json says tie_word_embeddings true (set it to false to use this one)"
                : ""));
  }
  return faults.ToStatus(checkpoint.dir());
}

}  // namespace kt
