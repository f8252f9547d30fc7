// SPDX-License-Identifier: Apache-2.0
// One-character sets of a regular expression, written so that PCRE2 can match them. PCRE2's classes
// have no nesting and no intersection, so a set knows every form in which it can be written and
// operations pick the one that stays a single class.
#ifndef KT_COORDINATOR_TOKENIZER_CHAR_SET_H_
#define KT_COORDINATOR_TOKENIZER_CHAR_SET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kt {

class CharSet {
 public:
  static CharSet Range(char32_t first, char32_t last);
  static CharSet Items(std::string items);  // what stands between the brackets of a PCRE2 class
  // General category, script or binary property by any of its Unicode names; nullopt: unknown.
  static std::optional<CharSet> Property(std::string_view name);

  static CharSet Union(const CharSet& a, const CharSet& b);
  static CharSet Intersection(const CharSet& a, const CharSet& b);
  static CharSet Complement(const CharSet& a);

  // A PCRE2 expression for exactly one character of the set; it can take a quantifier.
  std::string Pattern() const;

 private:
  static CharSet Categories(uint32_t mask);

  std::optional<uint32_t> categories_;  // the set is the union of these general categories (bits as
                                        // in ICU's U_GC_*_MASK)
  std::optional<std::string> items_;    // the set is [items_]
  std::optional<std::string> complement_;  // the set is [^complement_]
  std::string pattern_;                    // the set, when it is neither
};

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_CHAR_SET_H_
