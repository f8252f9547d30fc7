// SPDX-License-Identifier: Apache-2.0
#include "common/model/families/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kt {
namespace {

constexpr double kFactorMax = 1e6;
constexpr int kOriginalPositionsMax = 1 << 28;

// A field of the scaling, wherever it stands.
#define KT_ROPE_FIELD(name) \
  { "rope_scaling." name, "rope_parameters." name }

std::string RopeType(ConfigReader& r) {
  return r.String({"rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type",
                   "rope_parameters.type"},
                  "default");
}

bool HasRopeField(ConfigReader& r, std::string_view name) {
  return r.Has(fmt::format("rope_scaling.{}", name)) ||
         r.Has(fmt::format("rope_parameters.{}", name));
}

double ReadFactor(ConfigReader& r) { return r.Number(KT_ROPE_FIELD("factor"), 1, kFactorMax); }

int ReadOriginalPositions(ConfigReader& r, const ModelConfig& c) {
  return r.Int(KT_ROPE_FIELD("original_max_position_embeddings"), 1, kOriginalPositionsMax,
               c.max_position);
}

// Frequencies below the band of low_freq_factor are divided by the factor, those above the band of
// high_freq_factor stay, between them a blend.
void ScaleLlama3(ConfigReader& r, const ModelConfig& c, std::vector<double>& inv_freq) {
  const double factor = ReadFactor(r), original = ReadOriginalPositions(r, c);
  const double low = r.Number(KT_ROPE_FIELD("low_freq_factor"), 1e-3, kFactorMax);
  const double high = r.Number(KT_ROPE_FIELD("high_freq_factor"), 1e-3, kFactorMax);
  if (high <= low) {
    r.Refuse("rope scaling llama3: high_freq_factor {} must be more than low_freq_factor {}", high,
             low);
  }
  for (double& f : inv_freq) {
    const double turns = original * f / (2 * std::numbers::pi);  // within the original positions
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    f = (1 - kept) * f / factor + kept * f;
  }
}

double YarnMscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

void ScaleYarn(ConfigReader& r, const ModelConfig& c, RopeConfig& rope,
               std::vector<double>& inv_freq) {
  const double original = ReadOriginalPositions(r, c);
  const double factor = HasRopeField(r, "factor") ? ReadFactor(r) : c.max_position / original;
  const double beta_fast = r.Number(KT_ROPE_FIELD("beta_fast"), 1e-3, kFactorMax, 32.0);
  const double beta_slow = r.Number(KT_ROPE_FIELD("beta_slow"), 1e-3, kFactorMax, 1.0);
  const bool truncate = r.Bool(KT_ROPE_FIELD("truncate"), true);
  const double mscale = r.Number(KT_ROPE_FIELD("mscale"), 0, 100, 0.0);
  const double mscale_all_dim = r.Number(KT_ROPE_FIELD("mscale_all_dim"), 0, 100, 0.0);
  const double attention_factor =
      mscale != 0 && mscale_all_dim != 0
          ? YarnMscale(factor, mscale) / YarnMscale(factor, mscale_all_dim)
          : YarnMscale(factor, 1);
  rope.cos_sin_scale = static_cast<float>(
      r.Number(KT_ROPE_FIELD("attention_factor"), 1e-3, kFactorMax, attention_factor));
  if (rope.theta <= 1) {
    r.Refuse("rope_theta {} cannot be stretched by yarn; it must be more than 1", rope.theta);
    return;
  }
  // The component that turns `beta` times within the original positions.
  const auto component = [&](double beta) {
    return rope.rotary_dim * std::log(original / (beta * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = component(beta_fast), high = component(beta_slow);
  if (truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t j = 0; j < inv_freq.size(); ++j) {
    const double ramp = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    inv_freq[j] = inv_freq[j] / factor * ramp + inv_freq[j] * (1 - ramp);
  }
}

int ReadRotaryDim(ConfigReader& r, int head_dim, double default_partial) {
  const double partial = r.Number({"partial_rotary_factor", "rope_parameters.partial_rotary_factor",
                                   "rope_scaling.partial_rotary_factor"},
                                  0, 1, default_partial);
  const int by_factor = static_cast<int>(head_dim * partial);
  const int rotary_dim = r.Int({"rotary_dim"}, 2, head_dim < 2 ? 2 : head_dim, by_factor);
  const bool both = r.Has("partial_rotary_factor") && r.Has("rotary_dim");
  if (both && rotary_dim != by_factor) {
    r.Refuse("rotary_dim {} is not head_dim {} x partial_rotary_factor {}; remove one", rotary_dim,
             head_dim, partial);
  }
  if (rotary_dim < 2 || rotary_dim % 2 != 0) {
    r.Refuse(
        "head_dim {} x partial_rotary_factor {} gives {} rotary dimensions; they must be even and "
        "at least 2",
        head_dim, partial, rotary_dim);
  }
  return rotary_dim;
}

}  // namespace

RopeConfig ReadRope(ConfigReader& r, const ModelConfig& c, int head_dim,
                    const RopeDefaults& defaults) {
  RopeConfig rope;
  for (std::string_view nested :
       {"rope_parameters.full_attention", "rope_parameters.sliding_attention",
        "rope_parameters.linear_attention"}) {
    if (r.Has(nested)) r.Refuse("{}: one rope for all layers is supported", nested);
  }
  rope.theta = r.Number({"rope_theta", "rope_parameters.rope_theta", "rope_scaling.rope_theta"}, 1,
                        1e15, defaults.theta);
  const std::string type = RopeType(r);
  rope.rotary_dim = defaults.partial || type != "default"
                        ? ReadRotaryDim(r, head_dim, defaults.partial_rotary_factor)
                        : head_dim;
  if (rope.rotary_dim % 2 != 0) r.Refuse("head_dim {} is odd, which rope cannot turn", head_dim);
  std::vector<double> inv_freq;
  for (int j = 0; j < rope.rotary_dim / 2; ++j) {
    inv_freq.push_back(std::pow(rope.theta, -2.0 * j / rope.rotary_dim));
  }
  if (type == "linear") {
    const double factor = ReadFactor(r);
    for (double& f : inv_freq) f /= factor;
  } else if (type == "llama3") {
    ScaleLlama3(r, c, inv_freq);
  } else if (type == "yarn") {
    ScaleYarn(r, c, rope, inv_freq);
  } else if (type != "default") {
    r.Refuse(
        "rope scaling of type \"{}\" is not supported; supported: default, linear, llama3, "
        "yarn",
        type);
  } else if (HasRopeField(r, "factor") && r.Number(KT_ROPE_FIELD("factor"), -1e30, 1e30) != 1) {
    r.Refuse(
        "rope scaling has a factor but no rope_type; name one of linear, llama3, yarn, or remove "
        "the factor");
  }
  rope.inv_freq.assign(inv_freq.begin(), inv_freq.end());
  return rope;
}

double LatentScaleFactor(ConfigReader& r) {
  if (RopeType(r) == "default" || !HasRopeField(r, "factor")) return 1;
  const double all_dim = r.Number(KT_ROPE_FIELD("mscale_all_dim"), 0, 100, 0.0);
  if (all_dim == 0) return 1;
  const double m = YarnMscale(ReadFactor(r), all_dim);
  return m * m;
}

}  // namespace kt
