// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace kt {
namespace {

constexpr int kSequenceDepthMax = 8;
// The splits that HF tokenizers has built in.
constexpr std::string_view kByteLevelRegex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kWhitespaceRegex = R"([\w\p{Join_Control}]+|[^\w\p{Join_Control}\s]+)";
constexpr std::string_view kPunctuationRegex = R"([!-/:-@\[-`{-~\p{P}])";

}  // namespace

PreTokenizer PreTokenizer::FromRegex(Regex pattern) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.steps_.emplace_back(
      SplitStep{Pattern(std::move(pattern)), Behavior::kIsolated, false});
  return pre_tokenizer;
}

absl::StatusOr<PreTokenizer> PreTokenizer::FromJson(const Json& json, std::string_view where) {
  PreTokenizer pre_tokenizer;
  KT_RETURN_IF_ERROR(pre_tokenizer.Add(json, where, 0));
  if (!pre_tokenizer.byte_level_) {
    return InvalidArgument(
        "{}: must end in ByteLevel, got {}; only byte-level vocabularies are supported", where,
        JsonExcerpt(json));
  }
  return pre_tokenizer;
}

absl::Status PreTokenizer::Add(const Json& json, std::string_view where, int depth) {
  KT_ASSIGN_OR_RETURN(auto named_type, JsonString(json, "type", where));
  const std::string type = named_type.value_or(JsonExcerpt(json));
  if (byte_level_)
    return InvalidArgument("{}: type {:?} after ByteLevel is not supported; ByteLevel must be last",
                           where, type);
  if (type == "Sequence") {
    if (depth == kSequenceDepthMax)
      return InvalidArgument("{}: Sequence is nested deeper than {} levels", where,
                             kSequenceDepthMax);
    const Json parts = json.value("pretokenizers", Json::array());
    if (!parts.is_array())
      return InvalidArgument("{}: pretokenizers must be a list, got {}", where, JsonExcerpt(parts));
    for (size_t i = 0; i < parts.size(); ++i)
      KT_RETURN_IF_ERROR(Add(parts[i], fmt::format("{}.pretokenizers[{}]", where, i), depth + 1));
    return absl::OkStatus();
  }
  if (type == "Split") return AddSplit(json, where);
  if (type == "ByteLevel") {
    KT_ASSIGN_OR_RETURN(auto prefix_space, JsonBool(json, "add_prefix_space", where));
    KT_ASSIGN_OR_RETURN(auto use_regex, JsonBool(json, "use_regex", where));
    if (prefix_space.value_or(true)) steps_.emplace_back(PrefixSpace{});
    byte_level_ = true;
    return use_regex.value_or(true) ? AddRegex(kByteLevelRegex, Behavior::kIsolated, false)
                                    : absl::OkStatus();
  }
  if (type == "Digits") {
    KT_ASSIGN_OR_RETURN(auto individual, JsonBool(json, "individual_digits", where));
    return AddRegex(
        "\\p{N}", individual.value_or(false) ? Behavior::kIsolated : Behavior::kContiguous, false);
  }
  if (type == "Whitespace") return AddRegex(kWhitespaceRegex, Behavior::kRemoved, true);
  if (type == "WhitespaceSplit") return AddRegex("\\s", Behavior::kRemoved, false);
  if (type == "Punctuation") {
    KT_ASSIGN_OR_RETURN(Behavior behavior, BehaviorFromJson(json, where));
    return AddRegex(kPunctuationRegex, behavior, false);
  }
  return InvalidArgument(
      "{}: type {:?} is not supported; supported are Split, Digits, Whitespace, WhitespaceSplit, "
      "Punctuation, ByteLevel, Sequence",
      where, type);
}

absl::Status PreTokenizer::AddSplit(const Json& json, std::string_view where) {
  KT_ASSIGN_OR_RETURN(Pattern pattern, Pattern::FromJson(json, where));
  KT_ASSIGN_OR_RETURN(Behavior behavior, BehaviorFromJson(json, where));
  KT_ASSIGN_OR_RETURN(auto invert, JsonBool(json, "invert", where));
  steps_.emplace_back(SplitStep{std::move(pattern), behavior, invert.value_or(false)});
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddRegex(std::string_view regex, Behavior behavior, bool invert) {
  KT_ASSIGN_OR_RETURN(Regex compiled, Regex::Compile(regex));
  steps_.emplace_back(SplitStep{Pattern(std::move(compiled)), behavior, invert});
  return absl::OkStatus();
}

absl::StatusOr<PreTokenizer::Behavior> PreTokenizer::BehaviorFromJson(const Json& json,
                                                                      std::string_view where) {
  KT_ASSIGN_OR_RETURN(auto name, JsonString(json, "behavior", where));
  constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  if (!name) return Behavior::kIsolated;
  for (const auto& [behavior_name, behavior] : kBehaviors) {
    if (*name == behavior_name) return behavior;
  }
  return InvalidArgument(
      "{}: behavior must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous, "
      "got {:?}",
      where, *name);
}

// Joins neighbouring spans as HF tokenizers does; the joined ones are pieces whether they match or
// not.
void PreTokenizer::Merge(Behavior behavior, std::vector<Span>* spans) {
  if (behavior == Behavior::kRemoved || behavior == Behavior::kIsolated) return;
  bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) std::reverse(spans->begin(), spans->end());
  std::vector<Span> merged;
  bool previous = false;
  for (const Span& span : *spans) {
    bool join =
        behavior == Behavior::kContiguous ? span.is_match == previous : span.is_match && !previous;
    previous = span.is_match;
    if (join && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, span.begin);
      merged.back().end = std::max(merged.back().end, span.end);
    } else {
      merged.push_back(span);
    }
  }
  if (backwards) std::reverse(merged.begin(), merged.end());
  *spans = std::move(merged);
}

absl::Status PreTokenizer::SplitPiece(const SplitStep& step, std::string_view piece, RegexRun* run,
                                      std::vector<std::string_view>* out) {
  std::vector<Span> spans;
  size_t done = 0;
  KT_RETURN_IF_ERROR(step.pattern.ForEachMatch(piece, run, [&](size_t begin, size_t end) {
    if (done != begin) spans.push_back({done, begin, step.invert});
    spans.push_back({begin, end, !step.invert});
    done = end;
  }));
  if (done != piece.size()) spans.push_back({done, piece.size(), step.invert});
  Merge(step.behavior, &spans);
  for (const Span& span : spans) {
    bool removed = step.behavior == Behavior::kRemoved && span.is_match;
    if (!removed && span.begin != span.end)
      out->push_back(piece.substr(span.begin, span.end - span.begin));
  }
  return absl::OkStatus();
}

absl::StatusOr<Pieces> PreTokenizer::Split(std::string_view text, RegexRun* run) const {
  Pieces result;
  if (!text.empty()) result.pieces.push_back(text);
  for (const auto& step : steps_) {
    if (const SplitStep* split = std::get_if<SplitStep>(&step)) {
      std::vector<std::string_view> next;
      for (std::string_view piece : result.pieces)
        KT_RETURN_IF_ERROR(SplitPiece(*split, piece, run, &next));
      result.pieces = std::move(next);
    } else {
      for (std::string_view& piece : result.pieces) {
        if (piece[0] != ' ') piece = result.copies.emplace_back(fmt::format(" {}", piece));
      }
    }
  }
  return result;
}

}  // namespace kt
