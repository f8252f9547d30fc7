// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/output_text.h"

#include <algorithm>
#include <utility>

namespace kt {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (int i = 0; i < size(); ++i) {
    borders_.emplace_back(strings_[i].size(), 0);
    for (size_t k = 1; k < strings_[i].size(); ++k) {
      borders_[i][k] = Advance(i, borders_[i][k - 1], strings_[i][k]);
    }
  }
}

int StopStrings::Advance(int index, int matched, char c) const {
  const std::string& s = strings_[index];
  while (matched > 0 && s[matched] != c) matched = borders_[index][matched - 1];
  return s[matched] == c ? matched + 1 : 0;
}

std::string OutputText::Push(std::string_view text) {
  for (char c : text) {
    held_ += c;
    size_t found_size = 0;
    for (int i = 0; i < stops_->size(); ++i) {
      const std::string& stop = (*stops_)[i];
      matched_[i] = stops_->Advance(i, matched_[i], c);
      if (matched_[i] == static_cast<int>(stop.size()) && stop.size() > found_size) {
        found_ = &stop;
        found_size = stop.size();
      }
    }
    if (found_ != nullptr) {
      held_.resize(held_.size() - found_size);
      return std::exchange(held_, {});
    }
  }
  const int held = matched_.empty() ? 0 : *std::max_element(matched_.begin(), matched_.end());
  std::string ready = held_.substr(0, held_.size() - held);
  held_.erase(0, ready.size());
  return ready;
}

std::string OutputText::Flush() { return std::exchange(held_, {}); }

}  // namespace kt
