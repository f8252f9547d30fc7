// SPDX-License-Identifier: Apache-2.0
// Both texts are read event by event instead of into a tree: they may have 100 MB, and a tree would
// hide a name given twice.
#include "common/weights/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "common/base/json.h"
#include "common/base/status.h"

namespace kt {
namespace {

static_assert(std::endian::native == std::endian::little);
constexpr size_t kLengthBytes = 8;
constexpr size_t kRankMax = 16;

// Refuses every value; a subclass takes the ones its text may hold and keeps `depth_`.
class StrictSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Value("null"); }
  bool boolean(bool) override { return Value("a boolean"); }
  bool number_integer(int64_t x) override { return Value(fmt::format("{}", x)); }
  bool number_unsigned(uint64_t x) override { return Value(fmt::format("{}", x)); }
  bool number_float(double, const std::string& text) override { return Value(text); }
  bool string(std::string& text) override { return Value(Quoted(text)); }
  bool binary(nlohmann::json::binary_t&) override { return Value("binary data"); }
  bool start_array(size_t) override { return Value("a list"); }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail("not valid JSON at byte {}", position);
  }
  const absl::Status& status() const { return status_; }

 protected:
  virtual bool Value(const std::string& what) = 0;
  template <typename... Args>
  bool Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (status_.ok()) status_ = InvalidArgument(format, std::forward<Args>(args)...);
    return false;
  }
  int depth_ = 0;

 private:
  absl::Status status_;
};

template <typename Sax>
absl::Status ParseEvents(std::string_view text, Sax& sax) {
  bool ok = nlohmann::json::sax_parse(text.begin(), text.end(), &sax);
  return ok || !sax.status().ok() ? sax.status() : InvalidArgument("not valid JSON");
}

struct HeaderEntry {
  std::string name;
  std::optional<DType> dtype;
  std::optional<std::vector<uint64_t>> shape, offsets;
};

class HeaderSax : public StrictSax {
 public:
  std::vector<HeaderEntry>& entries() { return entries_; }

  bool start_object(size_t) override {
    if (++depth_ > 2) return Value("an object");
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 2) {
      field_ = name;
      return true;
    }
    if (!names_.insert(name).second) return Fail("{} is listed twice", Quoted(name));
    in_metadata_ = name == "__metadata__";
    if (!in_metadata_) entries_.push_back({.name = name});
    return true;
  }
  bool end_object() override {
    if (--depth_ == 0 || in_metadata_) return true;
    const HeaderEntry& e = entries_.back();
    if (e.dtype && e.shape && e.offsets) return true;
    return Fail("{} has no {}", Quoted(e.name),
                !e.dtype   ? "dtype"
                : !e.shape ? "shape"
                           : "data_offsets");
  }
  bool string(std::string& text) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || field_ != "dtype" || list_ != nullptr || entries_.back().dtype) {
      return StrictSax::string(text);
    }
    entries_.back().dtype = DTypeFromName(text);
    return entries_.back().dtype ||
           Fail("{} has the unknown dtype {}", Quoted(entries_.back().name), Quoted(text));
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || list_ != nullptr) return Value("a list");
    std::optional<std::vector<uint64_t>>* target = field_ == "shape" ? &entries_.back().shape
                                                   : field_ == "data_offsets"
                                                       ? &entries_.back().offsets
                                                       : nullptr;
    if (target == nullptr || target->has_value()) return Value("a list");
    list_ = &target->emplace();
    return true;
  }
  bool number_unsigned(uint64_t x) override {
    if (list_ == nullptr) return StrictSax::number_unsigned(x);
    if (list_->size() == kRankMax)
      return Fail("{} has more than {} values in {}", Quoted(entries_.back().name), kRankMax,
                  field_);
    list_->push_back(x);
    return true;
  }
  bool end_array() override {
    list_ = nullptr;
    return true;
  }

 private:
  bool Value(const std::string& what) override {
    if (depth_ == 0) return Fail("header is {}, not an object", what);
    std::string where = in_metadata_ || entries_.empty() ? "__metadata__" : entries_.back().name;
    return Fail("{} may not hold {}{}", Quoted(where), what,
                depth_ == 2 ? fmt::format(" in {}", Quoted(field_)) : "");
  }

  std::vector<HeaderEntry> entries_;
  std::unordered_set<std::string> names_;
  bool in_metadata_ = false;
  std::string field_;
  std::vector<uint64_t>* list_ = nullptr;
};

class IndexSax : public StrictSax {
 public:
  std::map<std::string, std::string>& files() { return files_; }
  bool found() const { return found_; }

  bool start_object(size_t) override {
    ++depth_;
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      in_map_ = name == "weight_map";
      if (in_map_ && std::exchange(found_, true)) return Fail("weight_map is given twice");
    } else if (in_map_) {
      name_ = name;
    }
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool string(std::string& file) override {
    if (!in_map_ || depth_ != 2) return StrictSax::string(file);
    bool plain = file.find('/') == std::string::npos && file.find('\0') == std::string::npos &&
                 file.size() <= 255 && file.ends_with(".safetensors");
    if (!plain) {
      return Fail(
          "weight_map places {} in {}; a shard must be the name of a .safetensors file in the same "
          "directory",
          Quoted(name_), Quoted(file));
    }
    if (!files_.emplace(name_, file).second) return Fail("{} is listed twice", Quoted(name_));
    return true;
  }

 private:
  // Outside weight_map the index may hold what it likes.
  bool Value(const std::string& what) override {
    return (depth_ > 0 && !in_map_) ||
           Fail("weight_map must map tensor names to file names, got {}", what);
  }

  std::map<std::string, std::string> files_;
  std::string name_;
  bool found_ = false, in_map_ = false;
};

// Elements of `shape` times their size; nullopt: that or a dimension is more than 2^63 - 1.
std::optional<uint64_t> BytesOf(DType dtype, const std::vector<uint64_t>& shape) {
  constexpr uint64_t kMax = INT64_MAX;
  uint64_t bytes = DTypeBytes(dtype);
  for (uint64_t n : shape) {
    if (n > kMax || __builtin_mul_overflow(bytes, n, &bytes) || bytes > kMax) return std::nullopt;
  }
  return bytes;
}

// What stands in a file instead of a shard, from its first bytes.
std::string_view Disguise(std::span<const uint8_t> file) {
  std::string_view text(reinterpret_cast<const char*>(file.data()),
                        std::min<size_t>(file.size(), 64));
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (text.starts_with('<')) return "looks like an HTML page saved as a shard (failed download?)";
  if (text.starts_with("version https://git-lfs"))
    return "is a Git LFS pointer, not the shard itself (run git lfs pull)";
  return "is not a safetensors file";
}

absl::StatusOr<std::string_view> HeaderText(std::span<const uint8_t> file) {
  if (file.size() < kLengthBytes)
    return InvalidArgument("{}: it has {} bytes", Disguise(file), file.size());
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > kSafetensorsHeaderMax) {
    return InvalidArgument("{}: header length {} is above the format's limit of {}", Disguise(file),
                           length, kSafetensorsHeaderMax);
  }
  if (length > file.size() - kLengthBytes) {
    return InvalidArgument("truncated: the header has {} bytes, the file {}", length, file.size());
  }
  return std::string_view(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
}

}  // namespace

std::string Quoted(std::string_view name) { return JsonExcerpt(Json(name)); }

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensors(std::span<const uint8_t> file) {
  KT_ASSIGN_OR_RETURN(std::string_view text, HeaderText(file));
  HeaderSax sax;
  KT_RETURN_IF_ERROR(Annotate(ParseEvents(text, sax), "header"));
  struct Range {
    uint64_t begin, end;
    HeaderEntry* header;
  };
  std::vector<Range> ranges;
  for (HeaderEntry& h : sax.entries()) {
    if (h.offsets->size() != 2 || h.offsets->front() > h.offsets->back()) {
      return InvalidArgument("{}: data_offsets [{}] are not [begin, end]", Quoted(h.name),
                             fmt::join(*h.offsets, ", "));
    }
    ranges.push_back({h.offsets->front(), h.offsets->back(), &h});
    std::optional<uint64_t> bytes = BytesOf(*h.dtype, *h.shape);
    if (bytes != ranges.back().end - ranges.back().begin) {
      return InvalidArgument("{}: {} [{}] does not fit data_offsets [{}]", Quoted(h.name),
                             DTypeName(*h.dtype), fmt::join(*h.shape, ", "),
                             fmt::join(*h.offsets, ", "));
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });

  std::span<const uint8_t> data = file.subspan(kLengthBytes + text.size());
  uint64_t end = 0;
  std::vector<SafetensorsEntry> entries;
  entries.reserve(ranges.size());
  for (const Range& range : ranges) {
    HeaderEntry& h = *range.header;
    if (range.begin != end) {
      return InvalidArgument("{}: its bytes begin at {}, {} the tensor before it ends at {}",
                             Quoted(h.name), range.begin,
                             range.begin < end ? "overlapping:" : "leaving a gap:", end);
    }
    end = range.end;
    if (end > data.size()) {
      return InvalidArgument(
          "truncated: {} needs bytes up to {}, the file holds {} (downloaded in part?)",
          Quoted(h.name), end, data.size());
    }
    entries.push_back({.name = std::move(h.name),
                       .dtype = *h.dtype,
                       .shape = {h.shape->begin(), h.shape->end()},
                       .data = data.subspan(range.begin, end - range.begin)});
  }
  if (end != data.size()) {
    return InvalidArgument("{} bytes follow the last tensor; the header describes {} of {}",
                           data.size() - end, end, data.size());
  }
  return entries;
}

absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view json) {
  if (json.size() > kSafetensorsHeaderMax) {
    return InvalidArgument("has {} bytes, more than the {} allowed", json.size(),
                           kSafetensorsHeaderMax);
  }
  IndexSax sax;
  KT_RETURN_IF_ERROR(ParseEvents(json, sax));
  if (!sax.found() || sax.files().empty()) return InvalidArgument("weight_map is missing or empty");
  return std::move(sax.files());
}

}  // namespace kt
