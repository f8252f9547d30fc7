// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/step_input.h"

#include <algorithm>

#include "common/base/status.h"

namespace kt {
namespace {

int BlocksFor(int positions, int block_tokens) {
  return (positions + block_tokens - 1) / block_tokens;
}

absl::Status CheckSequence(const proto::SequenceStep& s, const StepLimits& l) {
  auto bad = [&](const char* field, auto value, const char* expected) {
    return InvalidArgument("step: sequence {}: {} is {}, expected {}", s.sequence_id(), field,
                           value, expected);
  };
  int tokens = s.token_ids_size();
  if (tokens < 1) return bad("token_ids", "empty", "at least one token");
  if (s.start_position() < 0 || s.start_position() > l.position_max - tokens) {
    return bad("start_position", s.start_position(), "every position inside the context");
  }
  for (int id : s.token_ids()) {
    if (id < 0 || id >= l.vocab) return bad("token_ids", id, "an id of the vocabulary");
  }
  if (s.block_table_size() < BlocksFor(s.start_position() + tokens, l.block_tokens) ||
      s.block_table_size() > BlocksFor(l.position_max, l.block_tokens)) {
    return bad("block_table", s.block_table_size(),
               "a block for every position and none beyond the context");
  }
  for (int block : s.block_table()) {
    if (block < 0 || block >= l.kv_blocks) return bad("block_table", block, "a block of the pool");
  }
  if (s.target_ids_size() != 0 && s.target_ids_size() != tokens)
    return bad("target_ids", s.target_ids_size(), "one for each token, or none");
  for (int id : s.target_ids()) {
    if (id < -1 || id >= l.vocab) return bad("target_ids", id, "an id of the vocabulary or -1");
  }
  if (s.state_source() < 0 || s.state_source() > l.state_slots ||
      (l.state_slots > 0 && (s.state_source() == 0) != (s.start_position() == 0))) {
    return bad("state_source", s.state_source(),
               "a slot of the pool, 0 at position 0 and for a model without state");
  }
  if (s.state_target() < std::min(l.state_slots, 1) || s.state_target() > l.state_slots) {
    return bad("state_target", s.state_target(), "a slot of the pool, 0 for a model without state");
  }
  return absl::OkStatus();
}

// What one sequence writes no other reads or writes.
absl::Status CheckStateTargets(const proto::StepPlan& plan, const StepLimits& l) {
  std::vector<int> uses(l.state_slots + 1, 0);
  for (const proto::SequenceStep& s : plan.sequences()) {
    ++uses[s.state_source()];
    ++uses[s.state_target()];
  }
  for (const proto::SequenceStep& s : plan.sequences()) {
    if (l.state_slots > 0 && uses[s.state_target()] > 1) {
      return InvalidArgument("step: sequence {}: state_target is {}, which is used twice",
                             s.sequence_id(), s.state_target());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStepPlan(const proto::StepPlan& plan, const StepLimits& l) {
  if (plan.mode() != proto::STEP_MODE_HYBRID && plan.mode() != proto::STEP_MODE_LAYERWISE)
    return InvalidArgument("step: mode {} is not known", static_cast<int>(plan.mode()));
  if (plan.sequences_size() < 1 || plan.sequences_size() > l.sequences_max) {
    return InvalidArgument("step: {} sequences, expected 1 to {}", plan.sequences_size(),
                           l.sequences_max);
  }
  int64_t tokens = 0;
  for (const proto::SequenceStep& s : plan.sequences()) tokens += s.token_ids_size();
  if (tokens > l.tokens_max)
    return InvalidArgument("step: {} tokens, at most {}", tokens, l.tokens_max);
  for (const proto::BlockCopy& copy : plan.copies()) {
    for (int block : {copy.source(), copy.target()}) {
      if (block < 0 || block >= l.kv_blocks)
        return InvalidArgument("step: copy of block {}, the pool has {}", block, l.kv_blocks);
    }
  }
  for (const proto::SequenceStep& s : plan.sequences()) KT_RETURN_IF_ERROR(CheckSequence(s, l));
  return CheckStateTargets(plan, l);
}

absl::StatusOr<StepInput> StepInput::Allocate(const StepLimits& l, Device& device) {
  StepInput input;
  size_t rows = static_cast<size_t>(l.tokens_max);
  // Tables may repeat a block, so their room follows from positions, not from the pool.
  size_t table = static_cast<size_t>(l.sequences_max) *
                 static_cast<size_t>(BlocksFor(l.position_max, l.block_tokens));
  KT_ASSIGN_OR_RETURN(input.memory_,
                      device.Allocate((2 * rows + table) * sizeof(int32_t), "step input"));
  input.device_ids_ = input.memory_.As<int32_t>();
  input.device_positions_ = input.device_ids_ + rows;
  input.device_tables_ = input.device_positions_ + rows;
  return input;
}

absl::Status StepInput::Fill(const proto::StepPlan& plan, Device& device) {
  token_ids_.clear();
  positions_.clear();
  tables_.clear();
  sequences_.clear();
  int table_offset = 0;
  for (const proto::SequenceStep& s : plan.sequences()) {
    SequenceView view{.first_row = static_cast<int>(token_ids_.size()),
                      .tokens = s.token_ids_size(),
                      .start_position = s.start_position(),
                      .block_table = device_tables_ + table_offset,
                      .state_source = s.state_source(),
                      .state_target = s.state_target()};
    for (int i = 0; i < s.token_ids_size(); ++i) {
      token_ids_.push_back(s.token_ids(i));
      positions_.push_back(s.start_position() + i);
    }
    tables_.insert(tables_.end(), s.block_table().begin(), s.block_table().end());
    table_offset += s.block_table_size();
    sequences_.push_back(view);
  }
  auto upload = [&](int32_t* target, const std::vector<int32_t>& source) {
    return device.CopyAsync(target, source.data(), source.size() * sizeof(int32_t),
                            CopyKind::kHostToDevice, StreamId{});
  };
  KT_RETURN_IF_ERROR(upload(device_ids_, token_ids_));
  KT_RETURN_IF_ERROR(upload(device_positions_, positions_));
  return upload(device_tables_, tables_);
}

}  // namespace kt
