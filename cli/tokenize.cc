// SPDX-License-Identifier: Apache-2.0
#include "cli/tokenize.h"

#include <charconv>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt {
namespace {

absl::StatusOr<std::vector<int32_t>> ParseIds(std::string_view text) {
  std::vector<int32_t> ids;
  constexpr std::string_view kSpaces = " \t\r\n";
  for (size_t begin = text.find_first_not_of(kSpaces); begin != std::string_view::npos;
       begin = text.find_first_not_of(kSpaces, begin)) {
    std::string_view word = text.substr(begin, text.find_first_of(kSpaces, begin) - begin);
    int32_t id = 0;
    auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size()) {
      return InvalidArgument(
          "stdin: {:?} is not a token id; give whole numbers separated by spaces",
          word.substr(0, 40));
    }
    ids.push_back(id);
    begin += word.size();
  }
  return ids;
}

absl::StatusOr<std::string> Run(const std::string& path, bool decode) {
  KT_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Load(path));
  std::string input(std::istreambuf_iterator<char>(std::cin), {});
  if (decode) {
    KT_ASSIGN_OR_RETURN(auto ids, ParseIds(input));
    return tokenizer->Decode(ids, /*skip_special_tokens=*/false);
  }
  KT_ASSIGN_OR_RETURN(auto ids, tokenizer->Encode(input));
  return fmt::format("{}\n", fmt::join(ids, " "));
}

}  // namespace

int TokenizeMain(const std::string& path, bool decode) {
  auto output = Run(path, decode);
  if (!output.ok()) {
    std::cerr << "kt tokenize: " << Message(output.status()) << "\n";
    return 1;
  }
  std::cout << *output << std::flush;
  return std::cout ? 0 : 1;
}

}  // namespace kt
