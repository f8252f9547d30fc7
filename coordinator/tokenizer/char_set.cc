// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/char_set.h"

#include <fmt/format.h>
#include <unicode/uchar.h>
#include <unicode/uscript.h>

#include <utility>

#include "absl/strings/match.h"

namespace kt {
namespace {

constexpr uint32_t kAllCategories = (uint32_t{1} << U_CHAR_CATEGORY_COUNT) - 1;
constexpr uint32_t kMajorCategories[] = {U_GC_L_MASK, U_GC_M_MASK, U_GC_N_MASK, U_GC_P_MASK,
                                         U_GC_S_MASK, U_GC_Z_MASK, U_GC_C_MASK};

std::string CategoryItem(uint32_t mask) {
  return fmt::format("\\p{{{}}}",
                     u_getPropertyValueName(UCHAR_GENERAL_CATEGORY_MASK, static_cast<int32_t>(mask),
                                            U_SHORT_PROPERTY_NAME));
}

std::string CategoryItems(uint32_t mask) {
  std::string items;
  for (uint32_t major : kMajorCategories) {
    if ((mask & major) == major) {
      items += CategoryItem(major);
      mask &= ~major;
    }
  }
  for (; mask != 0; mask &= mask - 1) items += CategoryItem(mask & -mask);
  return items;
}

std::string HexEscape(char32_t c) { return fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(c)); }

}  // namespace

CharSet CharSet::Categories(uint32_t mask) {
  CharSet set;
  set.categories_ = mask;
  if (mask != 0) set.items_ = CategoryItems(mask);
  if (mask != kAllCategories) set.complement_ = CategoryItems(kAllCategories & ~mask);
  return set;
}

CharSet CharSet::Range(char32_t first, char32_t last) {
  return Items(first == last ? HexEscape(first) : HexEscape(first) + "-" + HexEscape(last));
}

CharSet CharSet::Items(std::string items) {
  CharSet set;
  set.items_ = std::move(items);
  return set;
}

std::optional<CharSet> CharSet::Property(std::string_view name_view) {
  std::string name(name_view);
  if (absl::EqualsIgnoreCase(name, "punct"))
    return std::nullopt;  // Oniguruma's has some symbols more than the category
  if (name == "Any") return Categories(kAllCategories);
  int32_t mask = u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, name.c_str());
  if (mask != UCHAR_INVALID_CODE) return Categories(static_cast<uint32_t>(mask));
  std::string property;
  if (int32_t script = u_getPropertyValueEnum(UCHAR_SCRIPT, name.c_str());
      script != UCHAR_INVALID_CODE) {
    property =
        fmt::format("sc:{}", u_getPropertyValueName(UCHAR_SCRIPT, script, U_SHORT_PROPERTY_NAME));
  } else if (UProperty binary = u_getPropertyEnum(name.c_str());
             binary >= 0 && binary < UCHAR_BINARY_LIMIT) {
    property = u_getPropertyName(binary, U_LONG_PROPERTY_NAME);
  } else {
    return std::nullopt;
  }
  CharSet set;
  set.items_ = fmt::format("\\p{{{}}}", property);
  set.complement_ = fmt::format("\\P{{{}}}", property);
  return set;
}

CharSet CharSet::Complement(const CharSet& a) {
  if (a.categories_) return Categories(kAllCategories & ~*a.categories_);
  CharSet set;
  set.items_ = a.complement_;
  set.complement_ = a.items_;
  if (!set.items_ && !set.complement_) set.pattern_ = fmt::format("(?:(?!{})(?s:.))", a.pattern_);
  return set;
}

CharSet CharSet::Union(const CharSet& a, const CharSet& b) {
  if (a.categories_ && b.categories_) return Categories(*a.categories_ | *b.categories_);
  CharSet set;
  if (a.items_ && b.items_) {
    set.items_ = *a.items_ + *b.items_;
  } else {
    set.pattern_ = fmt::format("(?:{}|{})", a.Pattern(), b.Pattern());
  }
  return set;
}

CharSet CharSet::Intersection(const CharSet& a, const CharSet& b) {
  if (a.categories_ && b.categories_) return Categories(*a.categories_ & *b.categories_);
  CharSet set;
  if (a.complement_ && b.complement_) {
    set.complement_ = *a.complement_ + *b.complement_;
  } else {
    set.pattern_ = fmt::format("(?:(?={}){})", a.Pattern(), b.Pattern());
  }
  return set;
}

std::string CharSet::Pattern() const {
  if (categories_ == kAllCategories) return "(?s:.)";
  if (categories_ == 0u) return "(?!)";
  // Properties have both forms: the shorter one.
  if (items_ && (!complement_ || items_->size() <= complement_->size())) return "[" + *items_ + "]";
  if (complement_) return "[^" + *complement_ + "]";
  return pattern_;
}

}  // namespace kt
