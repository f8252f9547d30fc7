// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "coordinator/tokenizer/utf8.h"

namespace kt {
namespace {

constexpr int kSequenceDepthMax = 8;
constexpr size_t kMarkRunMax = 64;

// ICU sorts a run of combining marks by insertion, which takes quadratic time for a long unsorted
// run. Long runs are put into canonical order here first; that does not change any normal form.
std::string SortLongMarkRuns(const icu::Normalizer2& decomposition, std::string_view text) {
  std::string out;
  std::vector<std::pair<uint8_t, char32_t>> run;
  size_t run_begin = 0, copied = 0;
  auto end_run = [&](size_t end) {
    if (run.size() > kMarkRunMax) {
      std::stable_sort(run.begin(), run.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      out.append(text.substr(copied, run_begin - copied));
      for (const auto& [combining_class, c] : run) AppendUtf8(c, &out);
      copied = end;
    }
    run.clear();
  };
  for (size_t pos = 0; pos < text.size();) {
    size_t begin = pos;
    char32_t c = NextUtf8(text, &pos);
    if (c < 0x300 || decomposition.hasBoundaryBefore(static_cast<UChar32>(c))) {
      end_run(begin);
      continue;
    }
    if (run.empty()) run_begin = begin;
    icu::UnicodeString parts;
    if (!decomposition.getDecomposition(static_cast<UChar32>(c), parts))
      parts.setTo(static_cast<UChar32>(c));
    for (int32_t i = 0; i < parts.length(); i = parts.moveIndex32(i, 1)) {
      UChar32 part = parts.char32At(i);
      run.emplace_back(u_getCombiningClass(part), static_cast<char32_t>(part));
    }
  }
  end_run(text.size());
  if (copied == 0) return std::string(text);
  out.append(text.substr(copied));
  return out;
}

std::string ToLower(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    char32_t c = NextUtf8(text, &i);
    if (c == U'\u0130') {  // the only character whose full lower case has two
      out += "i\u0307";
    } else {
      AppendUtf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))), &out);
    }
  }
  return out;
}

std::string_view StripSpaces(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    size_t next = 0;
    if (!IsUnicodeSpace(NextUtf8(text, &next))) break;
    text.remove_prefix(next);
  }
  while (right && !text.empty()) {
    size_t end = text.size();
    if (!IsUnicodeSpace(PreviousUtf8(text, &end))) break;
    text = text.substr(0, end);
  }
  return text;
}

}  // namespace

std::string Normalizer::ToForm(Form form, std::string_view text) {
  if (std::all_of(text.begin(), text.end(),
                  [](char c) { return static_cast<signed char>(c) >= 0; }))
    return std::string(text);
  UErrorCode error = U_ZERO_ERROR;
  bool compatible = form == Form::kNfkc || form == Form::kNfkd;
  const icu::Normalizer2* decomposition = compatible ? icu::Normalizer2::getNFKDInstance(error)
                                                     : icu::Normalizer2::getNFDInstance(error);
  const icu::Normalizer2* target = decomposition;
  if (form == Form::kNfc) target = icu::Normalizer2::getNFCInstance(error);
  if (form == Form::kNfkc) target = icu::Normalizer2::getNFKCInstance(error);
  std::string sorted = SortLongMarkRuns(*decomposition, text);
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(sorted.size()));
  target->normalizeUTF8(0, icu::StringPiece(sorted.data(), static_cast<int32_t>(sorted.size())),
                        sink, nullptr, error);
  return out;
}

absl::StatusOr<Normalizer> Normalizer::FromJson(const Json& json, std::string_view where) {
  Normalizer normalizer;
  KT_RETURN_IF_ERROR(normalizer.Add(json, where, 0));
  return normalizer;
}

absl::Status Normalizer::Add(const Json& json, std::string_view where, int depth) {
  if (json.is_null()) return absl::OkStatus();
  KT_ASSIGN_OR_RETURN(auto named_type, JsonString(json, "type", where));
  const std::string type = named_type.value_or(JsonExcerpt(json));
  constexpr std::pair<std::string_view, Form> kForms[] = {
      {"NFC", Form::kNfc}, {"NFD", Form::kNfd}, {"NFKC", Form::kNfkc}, {"NFKD", Form::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name) {
      steps_.emplace_back(form);
      return absl::OkStatus();
    }
  }
  if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "Prepend") {
    KT_ASSIGN_OR_RETURN(auto text, JsonString(json, "prepend", where));
    steps_.emplace_back(Prepend{text.value_or("")});
  } else if (type == "Replace") {
    KT_ASSIGN_OR_RETURN(Pattern pattern, Pattern::FromJson(json, where));
    KT_ASSIGN_OR_RETURN(auto content, JsonString(json, "content", where));
    steps_.emplace_back(Replace{std::move(pattern), content.value_or("")});
  } else if (type == "Strip") {
    KT_ASSIGN_OR_RETURN(auto left, JsonBool(json, "strip_left", where));
    KT_ASSIGN_OR_RETURN(auto right, JsonBool(json, "strip_right", where));
    steps_.emplace_back(Strip{left.value_or(true), right.value_or(true)});
  } else if (type == "Sequence") {
    if (depth == kSequenceDepthMax)
      return InvalidArgument("{}: Sequence is nested deeper than {} levels", where,
                             kSequenceDepthMax);
    const Json parts = json.value("normalizers", Json::array());
    if (!parts.is_array())
      return InvalidArgument("{}: normalizers must be a list, got {}", where, JsonExcerpt(parts));
    for (size_t i = 0; i < parts.size(); ++i)
      KT_RETURN_IF_ERROR(Add(parts[i], fmt::format("{}.normalizers[{}]", where, i), depth + 1));
  } else {
    return InvalidArgument(
        "{}: type {:?} is not supported; supported are NFC, NFD, NFKC, NFKD, Lowercase, Prepend, "
        "Replace, Strip, Sequence",
        where, type);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Normalizer::Normalize(std::string_view text, RegexRun* run) const {
  std::string current(text);
  for (const Step& step : steps_) {
    if (const Form* form = std::get_if<Form>(&step)) {
      current = ToForm(*form, current);
    } else if (std::holds_alternative<Lowercase>(step)) {
      current = ToLower(current);
    } else if (const Prepend* prepend = std::get_if<Prepend>(&step)) {
      if (!current.empty()) current.insert(0, prepend->text);
    } else if (const Strip* strip = std::get_if<Strip>(&step)) {
      current = std::string(StripSpaces(current, strip->left, strip->right));
    } else {
      const Replace& replace = std::get<Replace>(step);
      std::string replaced;
      size_t copied = 0;
      KT_RETURN_IF_ERROR(replace.pattern.ForEachMatch(current, run, [&](size_t begin, size_t end) {
        replaced.append(current, copied, begin - copied).append(replace.content);
        copied = end;
      }));
      current = replaced.append(current, copied);
    }
  }
  return current;
}

}  // namespace kt
