// SPDX-License-Identifier: Apache-2.0
// Oniguruma and PCRE2 agree on most of what tokenizer files use. What they read differently is
// rewritten here (classes with nesting and &&, properties, \s \w \h \v, options, intervals); what
// is neither common to both nor rewritten is refused.
#include <algorithm>
#include <charconv>

#include "common/base/status.h"
#include "coordinator/tokenizer/char_set.h"
#include "coordinator/tokenizer/regex.h"
#include "coordinator/tokenizer/utf8.h"

namespace kt {
namespace {

constexpr int kClassDepthMax = 16;

CharSet Space() { return CharSet::Items("\\x{9}-\\x{d}\\x{85}\\p{Z}"); }
CharSet Word() { return CharSet::Items("\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"); }
CharSet HexDigit() { return CharSet::Items("0-9A-Fa-f"); }

bool IsAsciiAlnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (pos_ < in_.size()) KT_RETURN_IF_ERROR(Next());
    return std::move(out_);
  }

 private:
  absl::Status Unsupported(size_t begin, std::string_view hint = "") const {
    std::string_view part = in_.substr(begin, std::max<size_t>(pos_, begin + 1) - begin);
    return InvalidArgument("regular expression {:?}: {:?} at byte {} is not supported{}", in_, part,
                           begin, hint);
  }

  bool Take(std::string_view text) {
    if (in_.substr(pos_, text.size()) != text) return false;
    pos_ += text.size();
    return true;
  }

  // Takes text up to `end` and `end` itself.
  std::optional<std::string_view> TakeUntil(char end) {
    size_t at = in_.find(end, pos_);
    if (at == std::string_view::npos) return std::nullopt;
    std::string_view text = in_.substr(pos_, at - pos_);
    pos_ = at + 1;
    return text;
  }

  absl::Status Next() {
    size_t begin = pos_;
    if (Take("\\")) return Escape(begin);
    if (Take("(")) return Group(begin);
    if (Take("[")) {
      KT_ASSIGN_OR_RETURN(CharSet set, Class(begin, 0));
      out_ += set.Pattern();
      return absl::OkStatus();
    }
    if (Take("{")) return Interval(begin);
    char32_t c = NextUtf8(in_, &pos_);
    if (std::string_view(")|*+?.^$").find(in_[begin]) != std::string_view::npos) {
      out_ += in_[begin];
    } else {
      Literal(c);
    }
    return absl::OkStatus();
  }

  void Literal(char32_t c) {
    if (c < 0x80 && !IsAsciiAlnum(static_cast<char>(c)))
      out_ += fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(c));
    else
      AppendUtf8(c, &out_);
  }

  absl::Status Group(size_t begin) {
    if (!Take("?")) {
      out_ += "(?:";  // Nothing refers to a captured group: backreferences are refused.
      return absl::OkStatus();
    }
    for (std::string_view kind : {":", "=", "!", ">", "<=", "<!"}) {
      if (Take(kind)) {
        out_ += fmt::format("(?{}", kind);
        return absl::OkStatus();
      }
    }
    std::string options;
    while (pos_ < in_.size() && (in_[pos_] == 'i' || in_[pos_] == 'm' || in_[pos_] == '-')) {
      options +=
          in_[pos_] == 'm' ? 's' : in_[pos_];  // Oniguruma's m lets the dot match a line break.
      ++pos_;
    }
    if (!options.empty() && Take(":")) {
      out_ += fmt::format("(?{}:", options);
      return absl::OkStatus();
    }
    // Without a colon the option holds to the end of the group, where the two disagree on what that
    // does to alternatives.
    if (!options.empty() && begin == 0 && Take(")")) {
      out_ += fmt::format("(?{})", options);
      return absl::OkStatus();
    }
    return Unsupported(
        begin,
        "; groups may be (...), (?:...), (?=...), (?!...), (?<=...), (?<!...), (?>...), (?i:...)");
  }

  // After "{": {n}, {n,}, {n,m}, {,m}; anything else is a literal brace.
  absl::Status Interval(size_t begin) {
    size_t end = in_.find('}', pos_);
    std::string_view body = end == std::string_view::npos ? "" : in_.substr(pos_, end - pos_);
    size_t comma = body.find(',');
    std::string_view low = body.substr(0, comma),
                     high = comma == std::string_view::npos ? "" : body.substr(comma + 1);
    auto is_number = [](std::string_view text) {
      return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    };
    if ((low.empty() && high.empty()) || !is_number(low) || !is_number(high)) {
      out_ += "\\{";
      return absl::OkStatus();
    }
    pos_ = end + 1;
    // A count is work that RegexRun does not see.
    if (low.size() > 3 || high.size() > 3) return Unsupported(begin, "; counts go up to 999");
    out_ += fmt::format("{{{}{}}}", low.empty() ? "0" : low,
                        comma == std::string_view::npos ? "" : fmt::format(",{}", high));
    bool reluctant = comma != std::string_view::npos && Take("?");
    if (reluctant) out_ += "?";
    if (pos_ < in_.size() && (in_[pos_] == '+' || in_[pos_] == '?' || in_[pos_] == '*')) {
      ++pos_;
      return Unsupported(begin, "; write the repetition of an interval as (?:x{n,m})+");
    }
    return absl::OkStatus();
  }

  // After a backslash, outside a class.
  absl::Status Escape(size_t begin) {
    std::string w = Word().Pattern();
    if (Take("b"))
      out_ += fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", w);
    else if (Take("B"))
      out_ += fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", w);
    else if (Take("A"))
      out_ += "\\A";
    else if (Take("z"))
      out_ += "\\z";
    else if (Take("Z"))
      out_ += "\\Z";
    else {
      KT_ASSIGN_OR_RETURN(auto set, EscapedSet(begin));
      if (set) {
        out_ += set->Pattern();
      } else {
        KT_ASSIGN_OR_RETURN(char32_t c, EscapedChar(begin));
        Literal(c);
      }
    }
    return absl::OkStatus();
  }

  // After a backslash: a set such as \s or \p{L}; nullopt (and nothing taken) when it is a single
  // character.
  absl::StatusOr<std::optional<CharSet>> EscapedSet(size_t begin) {
    char kind = pos_ < in_.size() ? in_[pos_] : '\0';
    std::optional<CharSet> set;
    switch (kind) {
      case 's':
      case 'S':
        set = Space();
        break;
      case 'w':
      case 'W':
        set = Word();
        break;
      case 'd':
      case 'D':
        set = CharSet::Property("Nd");
        break;
      case 'h':
      case 'H':
        set = HexDigit();
        break;
      case 'p':
      case 'P':
        break;
      default:
        return std::optional<CharSet>();
    }
    ++pos_;
    bool negated = kind < 'a';
    if (!set) {
      std::optional<std::string_view> name = Take("{") ? TakeUntil('}') : std::nullopt;
      if (!name) return Unsupported(begin, "; write a property as \\p{L}");
      if (name->substr(0, 1) == "^") {
        negated = !negated;
        name->remove_prefix(1);
      }
      set = CharSet::Property(*name);
      if (!set)
        return Unsupported(
            begin, "; properties are general categories, scripts and binary properties of Unicode");
    }
    return std::optional<CharSet>(negated ? CharSet::Complement(*set) : *set);
  }

  // After a backslash: one character.
  absl::StatusOr<char32_t> EscapedChar(size_t begin) {
    if (pos_ >= in_.size()) return Unsupported(begin);
    char32_t c = NextUtf8(in_, &pos_);
    switch (c) {
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 't':
        return U'\t';
      case 'f':
        return U'\f';
      case 'v':
        return U'\v';
      case 'a':
        return U'\a';
      case 'e':
        return U'\x1B';
      case 'u':
        return HexChar(begin, 4);
      case 'x':
        if (!Take("{")) return HexChar(begin, 2);
        if (auto digits = TakeUntil('}')) return ParseHex(begin, *digits);
        return Unsupported(begin);
      default:
        if (c < 0x80 && IsAsciiAlnum(static_cast<char>(c))) return Unsupported(begin);
        return c;
    }
  }

  absl::StatusOr<char32_t> HexChar(size_t begin, size_t digits) {
    std::string_view text = in_.substr(pos_, digits);
    pos_ += text.size();
    if (text.size() != digits) return Unsupported(begin);
    return ParseHex(begin, text);
  }

  absl::StatusOr<char32_t> ParseHex(size_t begin, std::string_view text) {
    uint32_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (error != std::errc() || end != text.data() + text.size() || value > 0x10FFFF ||
        (value >= 0xD800 && value <= 0xDFFF)) {
      return Unsupported(begin, "; expected the hexadecimal number of a character");
    }
    return static_cast<char32_t>(value);
  }

  // After "[". `begin` is the position of the bracket.
  absl::StatusOr<CharSet> Class(size_t begin, int depth) {
    if (depth > kClassDepthMax) return Unsupported(begin, "; classes are nested too deep");
    bool negated = Take("^");
    std::optional<CharSet> whole, part;  // `part` is what follows the last &&
    auto add = [](std::optional<CharSet>& to, const CharSet& set) {
      to = to ? CharSet::Union(*to, set) : set;
    };
    auto end_part = [&]() -> absl::Status {
      if (!part) return Unsupported(begin, "; a class or a side of && is empty");
      whole = whole ? CharSet::Intersection(*whole, *part) : *part;
      part.reset();
      return absl::OkStatus();
    };
    while (true) {
      size_t item = pos_;
      if (pos_ >= in_.size()) return Unsupported(begin, "; the class has no end");
      if (Take("]")) break;
      if (Take("[:")) return Unsupported(item, "; write a POSIX bracket as a property, \\p{...}");
      if (Take("[")) {
        KT_ASSIGN_OR_RETURN(CharSet nested, Class(item, depth + 1));
        add(part, nested);
      } else if (Take("&&")) {
        KT_RETURN_IF_ERROR(end_part());
      } else {
        KT_RETURN_IF_ERROR(ClassItem(item, [&](const CharSet& set) { add(part, set); }));
      }
    }
    KT_RETURN_IF_ERROR(end_part());
    return negated ? CharSet::Complement(*whole) : *whole;
  }

  // A character, a range or an escaped set inside a class.
  template <typename Add>
  absl::Status ClassItem(size_t begin, Add add) {
    auto one_char = [&](size_t at) -> absl::StatusOr<char32_t> {
      if (Take("\\")) return EscapedChar(at);
      return NextUtf8(in_, &pos_);
    };
    if (Take("\\")) {
      if (Take("b")) {
        add(CharSet::Range('\b', '\b'));
        return absl::OkStatus();
      }
      KT_ASSIGN_OR_RETURN(auto set, EscapedSet(begin));
      if (set) {
        add(*set);
        return absl::OkStatus();
      }
      pos_ = begin;
    }
    KT_ASSIGN_OR_RETURN(char32_t first, one_char(begin));
    char32_t last = first;
    if (RangeFollows()) {
      size_t at = ++pos_;
      KT_ASSIGN_OR_RETURN(last, one_char(at));
      if (last < first) return Unsupported(begin, "; the range is empty");
    }
    add(CharSet::Range(first, last));
    return absl::OkStatus();
  }

  // A hyphen with a character behind it; before a set, "]" or "&&" it stands for itself.
  bool RangeFollows() const {
    if (in_.substr(pos_, 1) != "-") return false;
    std::string_view next = in_.substr(pos_ + 1, 2);
    if (next.empty() || next[0] == ']' || next[0] == '[' || next == "&&") return false;
    return next[0] != '\\' || next.size() < 2 ||
           std::string_view("sSwWdDhHpP").find(next[1]) == std::string_view::npos;
  }

  std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslateOnigurumaRegex(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace kt
