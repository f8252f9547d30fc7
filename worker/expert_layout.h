// SPDX-License-Identifier: Apache-2.0
// Where packed experts lie in memory: within one expert, and within a bank of them. Every process
// computes the same from the checkpoint's headers, so one can use what another has packed.
#ifndef KT_WORKER_EXPERT_LAYOUT_H_
#define KT_WORKER_EXPERT_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/weights/stored_model.h"
#include "kernels/cpu/expert_ffn/moe_ffn.h"

namespace kt {

// Rows [begin, end) of the intermediate dimension; begin is a multiple of the packed tile.
struct IntermediateSlice {
  int begin = 0;
  int end = 0;
  int rows() const { return end - begin; }
  bool operator==(const IntermediateSlice&) const = default;
};
// What two slices share; of no rows where they share nothing.
IntermediateSlice Intersect(IntermediateSlice a, IntermediateSlice b);

// Which experts of which layers; dense layers have empty lists.
using ExpertSets = std::vector<std::vector<int>>;

// How experts are packed.
struct ExpertForm {
  bool exact = false;  // as in PackedFormatOf
  // The code they are rounded to for products with int8 activations (Int8XFormat); without one they
  // keep what they are stored in.
  std::optional<PackedCode> int8_x;
};
// Of the CPU experts served with a kt-method.
ExpertForm ExpertFormOf(std::string_view kt_method, bool exact);

// The parts of a slice of one expert, from its first byte on: gate, up and down (n, k and format;
// no data), then the biases that there are. The bias of down, which is added once to the sum over
// all slices, belongs to the first of them.
struct ExpertLayout {
  PackedMatrix gate, up, down;
  bool gate_bias = false, up_bias = false, down_bias = false;

  size_t up_at() const;
  size_t down_at() const;
  size_t gate_bias_at() const;
  size_t up_bias_at() const;
  size_t down_bias_at() const;
  size_t bytes() const;  // a multiple of 64
  // The expert whose bytes begin at `base`.
  ExpertWeights At(const uint8_t* base) const;
};
ExpertLayout LayoutOf(const StoredExpert& expert, IntermediateSlice slice, const ExpertForm& form);

// `rows` pieces of `bytes`: offsets of the first, and from each to the next.
struct CopyRun {
  size_t source = 0, target = 0, bytes = 0;
  size_t rows = 1;
  size_t source_stride = 0, target_stride = 0;
  bool operator==(const CopyRun&) const = default;
};

// A narrower slice of an expert: how it lies packed on its own, and what to copy there from where
// the wider slice lies. Copies are all there is to it: no byte changes its value.
struct ExpertCut {
  ExpertLayout layout;
  std::vector<CopyRun> runs;  // offsets from the first bytes of both
};
// `piece` lies within `held` and begins at one of its tiles. Rounded weights keep the scales of the
// slice they were rounded in.
ExpertCut CutExpert(const ExpertLayout& layout, IntermediateSlice held, IntermediateSlice piece);

// Adds the runs of a cut, moved; a run that goes on where the last one ends lengthens that.
void AppendRuns(const std::vector<CopyRun>& cut, size_t source, size_t target,
                std::vector<CopyRun>* runs);

// The same slice of many experts, packed one behind the other: for each layer in order, for each of
// its experts in order. Immutable.
class BankLayout {
 public:
  BankLayout(const StoredModel& stored, const ExpertSets& sets, IntermediateSlice slice,
             const ExpertForm& form);

  IntermediateSlice slice() const { return slice_; }
  size_t bytes() const { return bytes_; }
  struct Place {
    size_t at = 0;  // of its first byte in the bank
    ExpertLayout layout;
  };
  // Null: not in the bank.
  const Place* Find(size_t layer, int expert) const;
  // Of all that follows from the checkpoint's headers: two banks with the same one have every byte
  // in the same place.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  IntermediateSlice slice_;
  size_t bytes_ = 0;
  uint64_t fingerprint_ = 0;
  std::vector<std::vector<std::optional<Place>>> places_;  // [layer][expert]
};

}  // namespace kt

#endif  // KT_WORKER_EXPERT_LAYOUT_H_
