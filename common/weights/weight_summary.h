// SPDX-License-Identifier: Apache-2.0
// What a resolved checkpoint is made of, in the words of messages, flags and status pages.
#ifndef KT_COMMON_WEIGHTS_WEIGHT_SUMMARY_H_
#define KT_COMMON_WEIGHTS_WEIGHT_SUMMARY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/weights/stored_model.h"

namespace kt {

// "BF16", "F16", "F32", "FP8 block 128x128", "FP8 per channel", "INT4 group 32", "INT8 per
// channel", "MXFP4".
std::string PrecisionName(const MatrixView& view);

// Bytes of codes and scales, as stored.
int64_t StoredBytes(const MatrixView& view);
int64_t StoredBytes(const StoredVector& vector);

// Matrices of one part of a layer: their precisions joined by " + ", "-" where it has none. Bytes
// include vectors.
struct PartSummary {
  std::string precision = "-";
  int64_t bytes = 0;
};

struct LayerSummary {
  PartSummary attention;  // with the layer's norms
  PartSummary ffn;        // dense, or the shared experts; with the router
  PartSummary experts;    // all routed experts
  int64_t bytes() const { return attention.bytes + ffn.bytes + experts.bytes; }
};

struct WeightSummary {
  PartSummary embeddings;  // embedding, head (once where they are tied) and final norm
  std::vector<LayerSummary> layers;
  int64_t bytes() const;
  int64_t expert_bytes() const;
};

// `kt_method`: experts as this method holds them ("INT8 per row (AMXINT8)"); as stored where it
// does not round them.
WeightSummary Summarize(const StoredModel& model, const ModelConfig& config,
                        std::string_view kt_method = "");

// The --kt-method that the routed experts are stored for: "BF16" (also for F16 and F32), "FP8",
// "FP8_PERCHANNEL", "RAWINT4" (4 and 8 bits) or "MXFP4". Plain experts beside quantised ones follow
// these. FailedPrecondition: no routed experts, or two methods in one checkpoint.
absl::StatusOr<std::string> KtMethodOf(const StoredModel& model);

// 8 for AMXINT8 and 4 for AMXINT4, which round the weights of any checkpoint to so many bits as
// they are loaded; 0 for methods that keep them as they are stored.
int RoundedBits(std::string_view kt_method);

// The method to serve with: `asked` (in any case) where it rounds or is the one found; the one
// found where nothing is asked. InvalidArgument, with what to pass instead, where it is another
// one, is not served or is unknown.
absl::StatusOr<std::string> ChooseKtMethod(std::string_view asked, std::string_view found);

}  // namespace kt

#endif  // KT_COMMON_WEIGHTS_WEIGHT_SUMMARY_H_
