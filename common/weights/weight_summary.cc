// SPDX-License-Identifier: Apache-2.0
#include "common/weights/weight_summary.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>

#include "common/base/status.h"

namespace kt {
namespace {

constexpr std::string_view kServedMethods[] = {"BF16",  "FP8",     "FP8_PERCHANNEL", "RAWINT4",
                                               "MXFP4", "AMXINT8", "AMXINT4"};
constexpr std::string_view kOtherMethods[] = {"MOE_INT4", "MOE_INT8", "GPTQ_INT4", "LLAMAFILE",
                                              "MXFP8"};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool PerChannel(const MatrixView& v) { return v.block_rows == 1 && v.block_columns >= v.k; }

std::string GroupName(std::string_view code, const MatrixView& v) {
  return PerChannel(v) ? fmt::format("{} per channel", code)
                       : fmt::format("{} group {}", code, v.block_columns);
}

// Gathers the matrices and vectors of a part.
class Part {
 public:
  void Add(std::initializer_list<const StoredMatrix*> matrices) {
    for (const StoredMatrix* m : matrices) {
      if (!*m) continue;
      std::string name = PrecisionName(m->view);
      if (std::find(names_.begin(), names_.end(), name) == names_.end()) {
        names_.push_back(std::move(name));
      }
      bytes_ += StoredBytes(m->view);
      for (const MatrixView& rows : m->more) bytes_ += StoredBytes(rows);
    }
  }
  void Add(std::initializer_list<const StoredVector*> vectors) {
    for (const StoredVector* v : vectors) bytes_ += StoredBytes(*v);
  }
  PartSummary Summary() const {
    PartSummary summary{.bytes = bytes_};
    if (!names_.empty()) summary.precision = fmt::format("{}", fmt::join(names_, " + "));
    return summary;
  }

 private:
  std::vector<std::string> names_;
  int64_t bytes_ = 0;
};

// All experts of a layer, rounded to `bits` with an fp32 scale per row.
PartSummary Rounded(const StoredLayer& l, int bits, std::string_view kt_method) {
  PartSummary part;
  if (l.experts.empty()) return part;
  part.precision = fmt::format("INT{} per row ({})", bits, kt_method);
  for (const StoredExpert& e : l.experts) {
    for (const StoredMatrix* m : {&e.ffn.gate, &e.ffn.up, &e.ffn.down})
      part.bytes +=
          m->view.n * (CeilDiv(int64_t{m->view.k} * bits, 8) + ScaleBytes(ScaleType::kF32));
    part.bytes += StoredBytes(e.gate_bias) + StoredBytes(e.up_bias) + StoredBytes(e.down_bias);
  }
  return part;
}

void AddFfn(Part& part, const StoredFfn& ffn) { part.Add({&ffn.gate, &ffn.up, &ffn.down}); }

LayerSummary SummarizeLayer(const StoredLayer& l) {
  Part attention, ffn, experts;
  attention.Add({&l.q, &l.k, &l.v, &l.o, &l.q_a, &l.q_b, &l.kv_a, &l.kv_b, &l.index_q, &l.index_k,
                 &l.index_weights, &l.delta_qkv, &l.delta_z, &l.delta_b, &l.delta_a});
  attention.Add({&l.input_norm, &l.post_attention_norm, &l.o_bias, &l.q_bias, &l.k_bias, &l.v_bias,
                 &l.q_norm, &l.k_norm, &l.sinks, &l.q_a_bias, &l.kv_a_bias, &l.q_a_norm,
                 &l.kv_a_norm, &l.index_k_norm, &l.index_k_norm_bias, &l.conv, &l.a_log, &l.dt_bias,
                 &l.gated_norm});
  AddFfn(ffn, l.ffn);
  ffn.Add({&l.router, &l.router_bias, &l.correction_bias, &l.shared_gate});
  for (const StoredExpert& e : l.experts) {
    AddFfn(experts, e.ffn);
    experts.Add({&e.gate_bias, &e.up_bias, &e.down_bias});
  }
  return {attention.Summary(), ffn.Summary(), experts.Summary()};
}

std::string_view MethodOf(const MatrixView& view) {
  switch (view.code) {
    case WeightCode::kBf16:
    case WeightCode::kF16:
    case WeightCode::kF32:
      return "BF16";
    case WeightCode::kFp8E4m3:
      return PerChannel(view) ? "FP8_PERCHANNEL" : "FP8";
    case WeightCode::kInt8:
    case WeightCode::kInt4:
      return "RAWINT4";
    case WeightCode::kFp4E2m1:
      return "MXFP4";
  }
  return "";
}

}  // namespace

std::string PrecisionName(const MatrixView& view) {
  switch (view.code) {
    case WeightCode::kBf16:
      return "BF16";
    case WeightCode::kF16:
      return "F16";
    case WeightCode::kF32:
      return "F32";
    case WeightCode::kFp8E4m3:
      return PerChannel(view) ? "FP8 per channel"
                              : fmt::format("FP8 block {}x{}", view.block_rows, view.block_columns);
    case WeightCode::kInt8:
      return GroupName("INT8", view);
    case WeightCode::kInt4:
      return GroupName("INT4", view);
    case WeightCode::kFp4E2m1:
      return "MXFP4";
  }
  return "";
}

int64_t StoredBytes(const MatrixView& v) {
  const int64_t codes = v.n * CeilDiv(int64_t{v.k} * CodeBits(v.code), 8);
  if (v.scale == ScaleType::kNone) return codes;
  return codes + CeilDiv(v.n, v.block_rows) * CeilDiv(v.k, v.block_columns) * ScaleBytes(v.scale);
}

int64_t StoredBytes(const StoredVector& v) {
  return v ? v.size() * static_cast<int64_t>(DTypeBytes(v.tensor->dtype)) : 0;
}

int64_t WeightSummary::bytes() const {
  int64_t sum = embeddings.bytes;
  for (const LayerSummary& layer : layers) sum += layer.bytes();
  return sum;
}

int64_t WeightSummary::expert_bytes() const {
  int64_t sum = 0;
  for (const LayerSummary& layer : layers) sum += layer.experts.bytes;
  return sum;
}

WeightSummary Summarize(const StoredModel& model, const ModelConfig& config,
                        std::string_view kt_method) {
  WeightSummary summary;
  Part ends;
  ends.Add({&model.embedding});
  if (!config.tie_word_embeddings) ends.Add({&model.lm_head});
  ends.Add({&model.final_norm});
  summary.embeddings = ends.Summary();
  const int bits = RoundedBits(kt_method);
  for (const StoredLayer& layer : model.layers) {
    summary.layers.push_back(SummarizeLayer(layer));
    if (bits != 0) summary.layers.back().experts = Rounded(layer, bits, kt_method);
  }
  return summary;
}

absl::StatusOr<std::string> KtMethodOf(const StoredModel& model) {
  std::string_view found;
  size_t found_in = 0;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    for (const StoredExpert& e : model.layers[l].experts) {
      for (const StoredMatrix* m : {&e.ffn.gate, &e.ffn.up, &e.ffn.down}) {
        const std::string_view method = MethodOf(m->view);
        if (found.empty() || found == "BF16") {
          found = method;
          found_in = l;
        } else if (method != found && method != "BF16") {
          return FailedPrecondition(
              "routed experts are stored for two kt-methods: {} in layer {}, {} in layer {}; "
              "supported: one, and BF16 beside it",
              found, found_in, method, l);
        }
      }
    }
  }
  if (found.empty()) return FailedPrecondition("the checkpoint has no routed experts");
  return std::string(found);
}

int RoundedBits(std::string_view kt_method) {
  return kt_method == "AMXINT8" ? 8 : kt_method == "AMXINT4" ? 4 : 0;
}

absl::StatusOr<std::string> ChooseKtMethod(std::string_view asked, std::string_view found) {
  if (asked.empty()) return std::string(found);
  std::string method(asked);
  for (char& c : method) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (method == found || RoundedBits(method) != 0) return method;
  if (std::find(std::begin(kOtherMethods), std::end(kOtherMethods), method) !=
      std::end(kOtherMethods)) {
    return InvalidArgument(
        "kt-method {} is not served; supported: {}. This checkpoint's routed experts are {}",
        method, fmt::join(kServedMethods, ", "), found);
  }
  if (std::find(std::begin(kServedMethods), std::end(kServedMethods), method) ==
      std::end(kServedMethods)) {
    return InvalidArgument("kt-method \"{}\" is unknown; supported: {}", asked,
                           fmt::join(kServedMethods, ", "));
  }
  return InvalidArgument(
      "kt-method {} contradicts the checkpoint, whose routed experts are stored as {}; leave "
      "kt-method out or pass {}, or AMXINT8 or AMXINT4, which round any checkpoint's",
      method, found, found);
}

}  // namespace kt
