// SPDX-License-Identifier: Apache-2.0
// Finds stop strings in text that comes in pieces and holds back what may become one.
#ifndef KT_COORDINATOR_SCHEDULER_OUTPUT_TEXT_H_
#define KT_COORDINATOR_SCHEDULER_OUTPUT_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

namespace kt {

// The stop strings of a request, prepared for matching (Knuth-Morris-Pratt). Immutable.
class StopStrings {
 public:
  // None of them is empty.
  explicit StopStrings(std::vector<std::string> strings);

  int size() const { return static_cast<int>(strings_.size()); }
  const std::string& operator[](int index) const { return strings_[index]; }
  // Length of the longest beginning of string `index` that ends at byte `c`, when it was `matched`
  // before; matched < its length.
  int Advance(int index, int matched, char c) const;

 private:
  std::vector<std::string> strings_;
  std::vector<std::vector<int>> borders_;  // [i][k]: longest proper border of the first k + 1 bytes
};

// The result does not depend on how the text is cut into pieces: the match that ends first wins, of
// those the longest.
class OutputText {
 public:
  // `stops` outlives this.
  explicit OutputText(const StopStrings* stops) : stops_(stops), matched_(stops->size(), 0) {}

  // Takes more text, returns what can be shown. Whole characters in, whole characters out. Not
  // after a match.
  std::string Push(std::string_view text);
  // The end of the text: what was held back.
  std::string Flush();
  // The stop string that was found; the text before it has been returned, the rest is dropped.
  const std::string* found() const { return found_; }

 private:
  const StopStrings* stops_;
  std::vector<int> matched_;  // of each stop string: bytes that end the text so far
  std::string held_;
  const std::string* found_ = nullptr;
};

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_OUTPUT_TEXT_H_
