// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/dense_weights.h"

#include <cstring>

#include "common/base/status.h"
#include "kernels/cpu/gemm/gemm.h"

namespace kt {
namespace {

// Walks the model's tensors in a fixed order. Without memory it only measures; with it, it fills.
class Placer {
 public:
  Placer(const Checkpoint* checkpoint, uint8_t* memory, Parallel* parallel,
         const std::function<void(uint64_t)>* progress)
      : checkpoint_(checkpoint), memory_(memory), parallel_(parallel), progress_(progress) {}

  LinearWeight Linear(const std::string& name, const std::string& bias, int n, int k) {
    LinearWeight w{.n = n, .k = k};
    if (uint8_t* p = Take(PackedBf16Bytes(n, k))) {
      w.packed = reinterpret_cast<const bf16*>(p);
      if (const TensorInfo* t = Find(name)) Pack(*t, n, k, reinterpret_cast<bf16*>(p));
    }
    if (!bias.empty()) w.bias = Vector(bias, n);
    return w;
  }

  const float* Vector(const std::string& name, int64_t n) {
    auto* p = reinterpret_cast<float*>(Take(static_cast<size_t>(n) * 4));
    const TensorInfo* t = p != nullptr ? Find(name) : nullptr;
    if (t == nullptr) return p;
    if (t->dtype == DType::kF32) {
      std::memcpy(p, t->data.data(), static_cast<size_t>(n) * 4);
    } else {
      for (int64_t i = 0; i < n; ++i) {  // a shard may put its tensors at odd addresses
        bf16 x;
        std::memcpy(&x, t->data.data() + 2 * i, sizeof(x));
        p[i] = ToFloat(x);
      }
    }
    Done(*t);
    return p;
  }

  size_t used() const { return used_; }
  const std::string& missing() const { return missing_; }

 private:
  uint8_t* Take(size_t bytes) {
    size_t at = used_;
    used_ += (bytes + 255) / 256 * 256;
    return memory_ != nullptr ? memory_ + at : nullptr;
  }

  const TensorInfo* Find(const std::string& name) {
    const TensorInfo* t = checkpoint_->Find(name);
    if (t == nullptr && missing_.empty()) missing_ = name;
    return t;
  }

  void Pack(const TensorInfo& t, int n, int k, bf16* packed) {
    const auto* source = reinterpret_cast<const bf16*>(t.data.data());
    constexpr int kRows = 512;  // a multiple of the tile: parts are packed independently
    parallel_->Run((n + kRows - 1) / kRows, [&](int part, int) {
      int first = part * kRows, rows = std::min(kRows, n - first);
      PackBf16(source + int64_t{first} * k, k, rows, k,
               packed + PackedBf16Bytes(first, k) / sizeof(bf16));
    });
    Done(t);
  }

  void Done(const TensorInfo& t) {
    checkpoint_->Release(t);
    bytes_read_ += t.data.size();
    (*progress_)(bytes_read_);
  }

  const Checkpoint* checkpoint_;
  uint8_t* memory_;
  Parallel* parallel_;
  const std::function<void(uint64_t)>* progress_;
  size_t used_ = 0;
  uint64_t bytes_read_ = 0;
  std::string missing_;
};

FfnWeights PlaceFfn(Placer& p, const std::string& gate, const std::string& up,
                    const std::string& down, int hidden, int intermediate) {
  FfnWeights w;
  w.gate = p.Linear(gate, "", intermediate, hidden);
  w.up = p.Linear(up, "", intermediate, hidden);
  w.down = p.Linear(down, "", hidden, intermediate);
  return w;
}

void Place(const ModelConfig& c, Placer& p, DenseWeights& w) {
  ModelTensors names = TensorNames(c);
  w.embedding = p.Linear(names.embedding, "", c.vocab, c.hidden);
  w.head = c.tie_word_embeddings ? w.embedding : p.Linear(names.lm_head, "", c.vocab, c.hidden);
  w.final_norm = p.Vector(names.final_norm, c.hidden);
  w.layers.resize(c.layers.size());
  for (size_t l = 0; l < c.layers.size(); ++l) {
    const LayerTensors& t = names.layers[l];
    const AttentionConfig& a = c.attentions[static_cast<size_t>(c.layers[l].attention)];
    LayerWeights& out = w.layers[l];
    out.input_norm = p.Vector(t.input_norm, c.hidden);
    out.post_attention_norm = p.Vector(t.post_attention_norm, c.hidden);
    out.q = p.Linear(t.q, t.q_bias, a.num_heads * a.head_dim, c.hidden);
    out.k = p.Linear(t.k, t.k_bias, a.num_kv_heads * a.head_dim, c.hidden);
    out.v = p.Linear(t.v, t.v_bias, a.num_kv_heads * a.head_dim, c.hidden);
    out.o = p.Linear(t.o, "", c.hidden, a.num_heads * a.head_dim);
    if (a.qk_norm == QkNorm::kPerHead) {
      out.q_norm = p.Vector(t.q_norm, a.head_dim);
      out.k_norm = p.Vector(t.k_norm, a.head_dim);
    }
    if (!c.layers[l].moe) {
      out.ffn = PlaceFfn(p, t.gate, t.up, t.down, c.hidden, c.layers[l].dense_intermediate);
      continue;
    }
    const MoeConfig& moe = c.moes[static_cast<size_t>(*c.layers[l].moe)];
    out.router = p.Vector(t.router, int64_t{moe.num_experts} * c.hidden);
    if (moe.correction_bias) out.correction_bias = p.Vector(t.correction_bias, moe.num_experts);
    if (moe.shared_intermediate > 0)
      out.ffn =
          PlaceFfn(p, t.shared_gate, t.shared_up, t.shared_down, c.hidden, moe.shared_intermediate);
  }
}

}  // namespace

size_t DenseWeights::Bytes(const ModelConfig& config) {
  Placer measure(nullptr, nullptr, nullptr, nullptr);
  DenseWeights unused;
  Place(config, measure, unused);
  return measure.used();
}

absl::StatusOr<DenseWeights> DenseWeights::Load(const ModelConfig& config,
                                                const Checkpoint& checkpoint, Device& device,
                                                Parallel& parallel,
                                                const std::function<void(uint64_t)>& progress) {
  DenseWeights w;
  KT_ASSIGN_OR_RETURN(w.memory_, device.Allocate(Bytes(config), "dense weights"));
  Placer fill(&checkpoint, w.memory_.As<uint8_t>(), &parallel, &progress);
  Place(config, fill, w);
  if (!fill.missing().empty())
    return DataLoss("{}: tensor is missing in the checkpoint", fill.missing());
  return w;
}

}  // namespace kt
