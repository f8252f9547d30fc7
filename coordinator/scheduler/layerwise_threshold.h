// SPDX-License-Identifier: Apache-2.0
// From how many rows on a step is layerwise: a number that the user gives, or (auto) where copying
// all experts to the device becomes cheaper than having the CPU workers compute.
//
// Auto starts from what was measured when the workers were attached,
//   hybrid(rows)    = CPU ms per row * rows
//   layerwise(rows) = max(bytes to copy / copy rate, device ms per row * rows)
// and corrects each by what steps take, near that number of rows and then further away. A mode that
// was not seen for long is tried again where that costs little: never more than a small share of
// all time. Both modes give the same results, so this changes when an answer comes, never what it
// is.
#ifndef KT_COORDINATOR_SCHEDULER_LAYERWISE_THRESHOLD_H_
#define KT_COORDINATOR_SCHEDULER_LAYERWISE_THRESHOLD_H_

#include <array>
#include <cstdint>
#include <string>

namespace kt {

// Of one set of workers; of a whole step, all layers together.
struct LayerwiseCosts {
  bool possible = false;  // false: no step is layerwise
  // Of auto alone.
  uint64_t copy_bytes = 0;
  double copy_gbytes_per_s = 0;
  double device_ms_per_row = 0;
  double cpu_ms_per_row = 0;
};

// One thread.
class LayerwiseThreshold {
 public:
  static constexpr int kAuto = -1;
  static constexpr int kNever = 1 << 30;

  // `threshold` in rows; 0: no step is layerwise; kAuto.
  explicit LayerwiseThreshold(int threshold = 0) : fixed_(threshold) {}

  // New workers: what was learnt of others is forgotten.
  void SetCosts(const LayerwiseCosts& costs);
  // Whether the next step, of so many rows (>= 1), is layerwise.
  bool Choose(int rows);
  // What its experts took: time of the step without attention, dense layers and head.
  void Learn(bool layerwise, int rows, double ms);

  // Rows from which on steps are layerwise, but for tries; kNever: none is.
  int threshold() const { return threshold_; }
  // What auto goes by, in a sentence; empty with a fixed threshold or without workers.
  std::string Evidence() const;

 private:
  // What steps of a mode took, against what was expected of them.
  class Mode {
   public:
    void Add(int rows, double ratio, uint64_t step);
    double Correction(int rows) const;
    // Steps ago that one of about so many rows was seen.
    uint64_t Age(int rows, uint64_t step) const;
    uint64_t steps() const { return steps_; }

   private:
    struct Bin {  // rows of one power of two
      uint64_t seen = 0, last = 0;
      double log2_rows = 0, log_ratio = 0;
    };
    static size_t BinOf(int rows);
    std::array<Bin, 31> bins_;
    uint64_t steps_ = 0;
  };

  double Expected(bool layerwise, int rows) const;
  double Predicted(bool layerwise, int rows) const;
  void Update();

  const int fixed_;
  LayerwiseCosts costs_;
  Mode hybrid_, layerwise_;
  uint64_t step_ = 0;
  double budget_ms_ = 0;  // that tries may cost
  int threshold_ = kNever;
};

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_LAYERWISE_THRESHOLD_H_
