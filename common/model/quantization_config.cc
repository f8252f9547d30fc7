// SPDX-License-Identifier: Apache-2.0
#include "common/model/quantization_config.h"

#include <re2/re2.h>

#include <algorithm>

#include "common/base/status.h"
#include "common/model/config_reader.h"

namespace kt {
namespace {

constexpr size_t kEntryMax = 1024;         // bytes of an entry
constexpr size_t kEntriesMax = 1 << 16;    // of a list
constexpr int64_t kRegexMemory = 1 << 18;  // bytes of a compiled entry
constexpr size_t kRegexesMax = 256;        // of a list
constexpr int kBlockMax = 1 << 16;
constexpr int kGroupMax = 1 << 20;
constexpr size_t kConfigGroupsMax = 64;
constexpr std::string_view kWhere = "config.json: quantization_config";
constexpr std::string_view kRegexMark = "re:";

absl::StatusOr<std::shared_ptr<const re2::RE2>> Compile(std::string_view entry,
                                                        const std::string& pattern) {
  RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kRegexMemory);
  auto regex = std::make_shared<const re2::RE2>(pattern, options);
  if (!regex->ok()) {
    return InvalidArgument("{} cannot be compiled as a regular expression: {}",
                           JsonExcerpt(Json(std::string(entry))), regex->error());
  }
  return regex;
}

bool MatchesFromBeginning(const re2::RE2& regex, std::string_view text) {
  return regex.Match(re2::StringPiece(text.data(), text.size()), 0, text.size(), RE2::ANCHOR_START,
                     nullptr, 0);
}

// Whole dotted parts of `module`, in a row.
bool HasParts(std::string_view module, std::string_view parts) {
  for (size_t at = module.find(parts); at != std::string_view::npos;
       at = module.find(parts, at + 1)) {
    const size_t end = at + parts.size();
    if ((at == 0 || module[at - 1] == '.') && (end == module.size() || module[end] == '.')) {
      return true;
    }
  }
  return false;
}

using MakePattern = absl::StatusOr<ModulePattern> (*)(std::string_view);

void ReadPatterns(ConfigReader& r, ConfigReader::Spellings field, MakePattern make,
                  std::vector<ModulePattern>& out) {
  size_t regexes = 0;
  const std::vector<std::string> entries = r.Strings(field);
  if (entries.size() > kEntriesMax) {
    r.Refuse("{} has {} entries, more than the {} supported", *field.begin(), entries.size(),
             kEntriesMax);
    return;
  }
  for (const std::string& entry : entries) {
    if (entry.starts_with(kRegexMark) || entry.find('*') != std::string::npos) ++regexes;
    if (regexes > kRegexesMax) {
      r.Refuse("{} holds more than {} regular expressions", *field.begin(), kRegexesMax);
      return;
    }
    auto pattern = make(entry);
    if (!pattern.ok()) {
      r.Refuse("{}: {}", *field.begin(), Message(pattern.status()));
      return;
    }
    out.push_back(*std::move(pattern));
  }
}

// Fields that are not served must say nothing.
void RefuseIfSaid(ConfigReader& r, std::string_view field, std::string_view why) {
  if (r.Says(field)) {
    r.Refuse("{} {} is not supported: {}", field, r.Excerpt(field), why);
  }
}

// [128, 128]
void ReadBlock(ConfigReader& r, std::string_view field, QuantizationRule& rule) {
  const std::vector<int> block = r.Ints({field}, 1, kBlockMax);
  if (block.size() != 2) {
    r.Refuse("{} must be two integers, rows and columns of a scale's block, got {}", field,
             r.Excerpt(field));
    return;
  }
  rule.scheme = WeightScheme::kFp8Block;
  rule.block_rows = block[0];
  rule.block_columns = block[1];
}

void ReadFp8(ConfigReader& r, QuantizationConfig& config) {
  r.Only({"activation_scheme"}, {"dynamic"});
  r.Only({"fmt"}, {"e4m3", "float8_e4m3fn"});
  r.Only({"scale_fmt"}, {"ue8m0", "float"});
  QuantizationRule rule;
  rule.every_linear = true;
  ReadBlock(r, "weight_block_size", rule);
  config.rules = {rule};
  ReadPatterns(r, {"modules_to_not_convert"}, &ModulePattern::Part, config.exempt);
  ReadPatterns(r, {"ignored_layers"}, &ModulePattern::Part, config.exempt);
}

// config_groups.<name>.weights of a group in `format`.
void ReadGroupScheme(ConfigReader& r, const std::string& format, QuantizationRule& rule) {
  if (!r.Bool({"weights.symmetric"}, true)) {
    r.Refuse(
        "weights.symmetric false is not supported: zero points are not served; supported: "
        "symmetric weights");
  }
  if (r.Bool({"weights.dynamic"}, false)) {
    r.Refuse("weights.dynamic true is not supported; supported: false");
  }
  r.Only({"weights.actorder"}, {"static", "weight"});
  RefuseIfSaid(r, "output_activations", "outputs are not quantised");
  const std::string strategy = r.String({"weights.strategy"});
  if (format == "pack-quantized") {
    r.Only({"weights.type"}, {"int"});
    r.Only({"weights.strategy"}, {"group", "channel"});
    RefuseIfSaid(r, "input_activations", "packed integers are served with plain activations");
    rule.scheme = WeightScheme::kPackedInt;
    rule.bits = r.Int({"weights.num_bits"}, 4, 8);
    if (rule.bits != 4 && rule.bits != 8) {
      r.Refuse("weights.num_bits {} is not supported; supported: 4, 8", rule.bits);
    }
    if (strategy == "group") rule.group = r.Int({"weights.group_size"}, 2, kGroupMax);
    if (rule.group % 2 != 0) {
      r.Refuse("weights.group_size {} is not supported; supported: even sizes", rule.group);
    }
    return;
  }
  r.Only({"weights.type"}, {"float"});
  r.Only({"weights.strategy"}, {"channel", "block"});
  r.Int({"weights.num_bits"}, 8, 8);
  if (r.Has("input_activations") && !r.Bool({"input_activations.dynamic"}, false)) {
    r.Refuse(
        "input_activations.dynamic false is not supported: stored activation scales are not "
        "served; supported: true");
  }
  rule.scheme = WeightScheme::kFp8Channel;
  if (strategy == "block") ReadBlock(r, "weights.block_structure", rule);
}

void ReadGroupTargets(ConfigReader& r, QuantizationRule& rule) {
  std::vector<ModulePattern> targets;
  ReadPatterns(r, {"targets"}, &ModulePattern::Whole, targets);
  if (targets.empty()) r.Refuse("targets is missing; it names what the group is for");
  for (ModulePattern& target : targets) {
    if (target.text() == "Linear") {
      rule.every_linear = true;
    } else {
      rule.targets.push_back(std::move(target));
    }
  }
}

void ReadCompressedTensors(const Json& object, ConfigReader& r, QuantizationConfig& config) {
  RefuseIfSaid(r, "kv_cache_scheme", "scales of the cache are not served; supported: null");
  RefuseIfSaid(r, "transform_config", "transformed weights are not served");
  if (r.Says("sparsity_config")) r.Only({"sparsity_config.format"}, {"dense"});
  ReadPatterns(r, {"ignore"}, &ModulePattern::Whole, config.exempt);
  const std::string common_format = r.Has("format") ? r.String({"format"}) : "";
  auto groups = object.find("config_groups");
  if (groups == object.end() || !groups->is_object() || groups->empty() ||
      groups->size() > kConfigGroupsMax) {
    r.Refuse("config_groups must be an object of 1 to {} groups, got {}", kConfigGroupsMax,
             r.Excerpt("config_groups"));
    return;
  }
  for (const auto& [name, group] : groups->items()) {
    ConfigReader g(group, fmt::format("{}.config_groups.{}", kWhere, JsonExcerpt(Json(name))));
    const std::string format = g.Has("format") ? g.String({"format"}) : common_format;
    if (format != "float-quantized" && format != "pack-quantized") {
      g.Refuse("format \"{}\" is not supported; supported: float-quantized, pack-quantized",
               format);
    }
    QuantizationRule rule;
    ReadGroupScheme(g, format, rule);
    ReadGroupTargets(g, rule);
    r.Keep(g.status());
    config.rules.push_back(std::move(rule));
  }
}

void ReadMxfp4(ConfigReader& r, QuantizationConfig& config) {
  QuantizationRule rule;
  rule.scheme = WeightScheme::kMxfp4Fused;
  rule.every_linear = true;
  config.rules = {rule};
  ReadPatterns(r, {"modules_to_not_convert"}, &ModulePattern::Part, config.exempt);
}

}  // namespace

absl::StatusOr<ModulePattern> ModulePattern::Whole(std::string_view entry) {
  ModulePattern pattern;
  pattern.text_ = entry;
  if (entry.size() > kEntryMax) {
    return InvalidArgument("an entry of {} bytes is longer than the {} supported", entry.size(),
                           kEntryMax);
  }
  if (entry.starts_with(kRegexMark)) {
    KT_ASSIGN_OR_RETURN(pattern.regex_,
                        Compile(entry, std::string(entry.substr(kRegexMark.size()))));
  }
  return pattern;
}

absl::StatusOr<ModulePattern> ModulePattern::Part(std::string_view entry) {
  KT_ASSIGN_OR_RETURN(ModulePattern pattern, Whole(entry));
  if (pattern.regex_ != nullptr) return pattern;
  pattern.part_ = true;
  if (entry.find('*') == std::string_view::npos) return pattern;
  std::string regex = "(?:.*\\.)?";
  for (size_t at = 0; at <= entry.size();) {
    const size_t star = std::min(entry.find('*', at), entry.size());
    regex += RE2::QuoteMeta(re2::StringPiece(entry.data() + at, star - at));
    if (star < entry.size()) regex += ".*";
    at = star + 1;
  }
  KT_ASSIGN_OR_RETURN(pattern.regex_, Compile(entry, regex + "(?:\\.|$)"));
  return pattern;
}

bool ModulePattern::Matches(std::string_view module) const {
  if (regex_ != nullptr) return MatchesFromBeginning(*regex_, module);
  return part_ ? HasParts(module, text_) : module == text_;
}

const QuantizationRule* QuantizationConfig::RuleOf(std::string_view module) const {
  const auto matches = [&](const ModulePattern& pattern) { return pattern.Matches(module); };
  if (rules.empty() || std::any_of(exempt.begin(), exempt.end(), matches)) return nullptr;
  for (const QuantizationRule& rule : rules) {
    if (std::any_of(rule.targets.begin(), rule.targets.end(), matches)) return &rule;
  }
  for (const QuantizationRule& rule : rules) {
    if (rule.every_linear) return &rule;
  }
  return nullptr;
}

absl::StatusOr<QuantizationConfig> ParseQuantizationConfig(const Json& object) {
  ConfigReader r(object, std::string(kWhere));
  QuantizationConfig config;
  const std::string method = r.String({"quant_method"});
  if (method == "fp8") {
    ReadFp8(r, config);
  } else if (method == "compressed-tensors") {
    ReadCompressedTensors(object, r, config);
  } else if (method == "mxfp4") {
    ReadMxfp4(r, config);
  } else {
    r.Refuse(
        "quant_method {} (format {}) is not served; supported: fp8, compressed-tensors, mxfp4 "
        "and plain BF16: convert the checkpoint or take another release of the model",
        r.Excerpt("quant_method"), r.Excerpt("format"));
  }
  KT_RETURN_IF_ERROR(r.status());
  return config;
}

}  // namespace kt
