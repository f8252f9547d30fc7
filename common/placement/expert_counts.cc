// SPDX-License-Identifier: Apache-2.0
#include "common/placement/expert_counts.h"

#include <algorithm>
#include <cmath>

#include "common/base/status.h"
#include "common/placement/placement.h"
#include "common/weights/mapped_file.h"

namespace kt {
namespace {

constexpr JsonLimits kLimits{.bytes_max = size_t{256} << 20, .depth_max = 8};

absl::Status AddLayer(const Json& layer, std::vector<double>* sums) {
  if (!layer.is_array() || layer.empty())
    return InvalidArgument("logical_count: {}, expected a list of counts", JsonExcerpt(layer));
  if (sums->empty()) sums->resize(layer.size());
  if (sums->size() != layer.size()) {
    return InvalidArgument("logical_count: a layer of {} experts beside one of {}", layer.size(),
                           sums->size());
  }
  for (size_t e = 0; e < layer.size(); ++e) {
    const double count = layer[e].is_number() ? layer[e].get<double>() : -1;
    if (!std::isfinite(count) || count < 0) {
      return InvalidArgument("logical_count: {}, expected a number that is not negative",
                             JsonExcerpt(layer[e]));
    }
    (*sums)[e] += count;
  }
  return absl::OkStatus();
}

absl::Status AddPass(const Json& pass, ExpertCounts* sums) {
  if (!pass.is_array() || pass.empty())
    return InvalidArgument("logical_count: {}, expected a list of layers", JsonExcerpt(pass));
  if (sums->empty()) sums->resize(pass.size());
  if (sums->size() != pass.size()) {
    return InvalidArgument("logical_count: a pass of {} layers beside one of {}", pass.size(),
                           sums->size());
  }
  for (size_t l = 0; l < pass.size(); ++l) {
    if (l > 0) (*sums)[l].resize((*sums)[0].size());
    KT_RETURN_IF_ERROR(AddLayer(pass[l], &(*sums)[l]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExpertCounts> JsonExpertCounts(const Json& json) {
  if (!json.is_object() || !json.contains("logical_count"))
    return InvalidArgument("has no logical_count; expected an object with it");
  const Json& counts = json["logical_count"];
  ExpertCounts sums;
  const bool passes = counts.is_array() && !counts.empty() && counts[0].is_array() &&
                      !counts[0].empty() && counts[0][0].is_array();
  if (!passes) {
    KT_RETURN_IF_ERROR(AddPass(counts, &sums));
    return sums;
  }
  for (const Json& pass : counts) KT_RETURN_IF_ERROR(AddPass(pass, &sums));
  return sums;
}

absl::StatusOr<ExpertCounts> ReadExpertCounts(const std::string& path) {
  KT_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
  const std::span<const uint8_t> bytes = file->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  auto read = [&]() -> absl::StatusOr<ExpertCounts> {
    if (text.substr(0, 2) == "PK") return TorchExpertCounts(bytes);
    KT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, kLimits));
    return JsonExpertCounts(json);
  };
  absl::StatusOr<ExpertCounts> counts = read();
  if (!counts.ok()) return Annotate(counts.status(), path);
  return counts;
}

absl::Status CheckShape(const ExpertCounts& counts, const ModelConfig& config) {
  int experts = 0;
  for (size_t l = 0; l < config.layers.size(); ++l)
    experts = std::max(experts, ExpertsOf(config, l));
  if (counts.size() != config.layers.size() || counts[0].size() != static_cast<size_t>(experts)) {
    return InvalidArgument(
        "its counts are of {} layers and {} experts, the model has {} layers and {} experts",
        counts.size(), counts[0].size(), config.layers.size(), experts);
  }
  return absl::OkStatus();
}

}  // namespace kt
