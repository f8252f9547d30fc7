// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/layerwise_threshold.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace kt {
namespace {

constexpr double kNewest = 0.3;     // weight of the newest step of its bin
constexpr double kTryShare = 0.02;  // of all time, for tries
constexpr double kTryRatioMax = 3;  // what a try may take, against the better mode
constexpr uint64_t kTryAge = 32;    // steps since the mode was last seen
constexpr int kTryBelow = 4;        // tries are made from this part of the threshold on
constexpr int kLearnBelow = 16;     // steps below this part of it say nothing about it
constexpr double kGrid = 1.05;      // of the search for the threshold
constexpr int kRowsMax = 1 << 17;

}  // namespace

size_t LayerwiseThreshold::Mode::BinOf(int rows) {
  return static_cast<size_t>(std::bit_width(static_cast<unsigned>(rows)) - 1);
}

void LayerwiseThreshold::Mode::Add(int rows, double ratio, uint64_t step) {
  Bin& bin = bins_[BinOf(rows)];
  const double weight =
      bin.seen == 0 ? 1 : std::max(kNewest, 1.0 / static_cast<double>(bin.seen + 1));
  bin.log2_rows += weight * (std::log2(rows) - bin.log2_rows);
  bin.log_ratio += weight * (std::log(ratio) - bin.log_ratio);
  bin.last = step;
  ++bin.seen;
  ++steps_;
}

// Between two bins that were seen in proportion, beyond the outer ones as there.
double LayerwiseThreshold::Mode::Correction(int rows) const {
  const double at = std::log2(rows);
  const Bin *below = nullptr, *above = nullptr;
  for (const Bin& bin : bins_) {
    if (bin.seen == 0) continue;
    if (bin.log2_rows <= at) below = &bin;
    if (bin.log2_rows >= at && above == nullptr) above = &bin;
  }
  if (below == nullptr && above == nullptr) return 1;
  if (below == nullptr || above == nullptr || below == above)
    return std::exp((below != nullptr ? below : above)->log_ratio);
  const double share = (at - below->log2_rows) / (above->log2_rows - below->log2_rows);
  return std::exp(below->log_ratio + share * (above->log_ratio - below->log_ratio));
}

uint64_t LayerwiseThreshold::Mode::Age(int rows, uint64_t step) const {
  const Bin& bin = bins_[BinOf(rows)];
  return bin.seen == 0 ? std::numeric_limits<uint64_t>::max() : step - bin.last;
}

void LayerwiseThreshold::SetCosts(const LayerwiseCosts& costs) {
  costs_ = costs;
  hybrid_ = layerwise_ = Mode();
  budget_ms_ = 0;
  threshold_ = costs.possible && fixed_ > 0 ? fixed_ : kNever;
  Update();
}

double LayerwiseThreshold::Expected(bool layerwise, int rows) const {
  if (!layerwise) return costs_.cpu_ms_per_row * rows;
  return std::max(static_cast<double>(costs_.copy_bytes) / costs_.copy_gbytes_per_s / 1e6,
                  costs_.device_ms_per_row * rows);
}

double LayerwiseThreshold::Predicted(bool layerwise, int rows) const {
  return Expected(layerwise, rows) * (layerwise ? layerwise_ : hybrid_).Correction(rows);
}

void LayerwiseThreshold::Update() {
  if (fixed_ != kAuto || !costs_.possible) return;
  threshold_ = kNever;
  if (costs_.copy_bytes == 0 || costs_.copy_gbytes_per_s <= 0 || costs_.cpu_ms_per_row <= 0) return;
  // From above: where hybrid stops to be the worse choice.
  for (double rows = kRowsMax; rows >= 1; rows /= kGrid) {
    const int whole = static_cast<int>(rows);
    if (Predicted(true, whole) > Predicted(false, whole)) return;
    threshold_ = whole;
  }
}

bool LayerwiseThreshold::Choose(int rows) {
  const bool layerwise = rows >= threshold_;
  if (fixed_ != kAuto || threshold_ == kNever || rows < threshold_ / kTryBelow) return layerwise;
  if ((layerwise ? hybrid_ : layerwise_).Age(rows, step_) < kTryAge) return layerwise;
  const double best = Predicted(layerwise, rows), other = Predicted(!layerwise, rows);
  if (other > kTryRatioMax * best || other - best > budget_ms_) return layerwise;
  budget_ms_ -= std::max(0.0, other - best);
  return !layerwise;
}

void LayerwiseThreshold::Learn(bool layerwise, int rows, double ms) {
  ++step_;
  if (fixed_ != kAuto || !costs_.possible || ms <= 0) return;
  if (threshold_ != kNever && rows < threshold_ / kLearnBelow) return;
  budget_ms_ += kTryShare * ms;
  const double expected = Expected(layerwise, rows);
  if (!(expected > 0) || !std::isfinite(expected)) return;
  (layerwise ? layerwise_ : hybrid_).Add(rows, ms / expected, step_);
  Update();
}

std::string LayerwiseThreshold::Evidence() const {
  if (fixed_ != kAuto || !costs_.possible) return "";
  if (costs_.copy_bytes == 0)
    return "layerwise prefill: every expert is resident, nothing is copied";
  const int rows = std::clamp(threshold_, 1, kRowsMax);
  return fmt::format(
      "layerwise prefill from {} rows on: there, experts take {:.1f} ms layerwise and {:.1f} ms "
      "hybrid (measured at start: {:.3f} GB to copy at {:.2f} GB/s, {:.4f} ms a row on the device, "
      "{:.4f} on the CPU workers; corrected by {} layerwise and {} hybrid steps, x {:.2f} and x "
      "{:.2f})",
      threshold_ == kNever ? std::string("no number of") : std::to_string(threshold_),
      Predicted(true, rows), Predicted(false, rows), static_cast<double>(costs_.copy_bytes) / 1e9,
      costs_.copy_gbytes_per_s, costs_.device_ms_per_row, costs_.cpu_ms_per_row, layerwise_.steps(),
      hybrid_.steps(), layerwise_.Correction(rows), hybrid_.Correction(rows));
}

}  // namespace kt
