// SPDX-License-Identifier: Apache-2.0
// tokenizer_golden_check GOLDEN.json VOCABULARY STRINGS.json: compares the ids, the decoded text
// and the stream deltas of one golden file with what the tokenizer gives. Prints the differences;
// exit code 0: none.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include "common/base/status.h"
#include "coordinator/tokenizer/tiktoken.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadVocabulary(const Json& golden,
                                                          const std::string& path) {
  if (golden["kind"] == "tokenizer.json" || std::filesystem::is_directory(path))
    return Tokenizer::Load(path);
  return LoadTiktoken(path, golden["pattern"].get<std::string>(), [&](int32_t) {
    const Json not_special = golden.value("added_but_not_special", Json::array());
    std::vector<AddedToken> added;
    for (const auto& [content, id] : golden["special_tokens"].items()) {
      bool special = std::find(not_special.begin(), not_special.end(), id) == not_special.end();
      added.push_back({.id = id.get<int32_t>(), .content = content, .special = special});
    }
    return added;
  });
}

class Checker {
 public:
  explicit Checker(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void CheckCase(const Json& item, const std::string& text) {
    std::string name = item["name"];
    auto ids = tokenizer_.Encode(text);
    Expect(name + " ids", item["ids"], ids.ok() ? Json(*ids) : Json(Message(ids.status())));
    auto golden_ids = item["ids"].get<std::vector<int32_t>>();
    Expect(name + " decoded", item.value("decoded", text), tokenizer_.Decode(golden_ids, false));
    if (item.contains("decoded_skip_special")) {
      Expect(name + " decoded_skip_special", item["decoded_skip_special"],
             tokenizer_.Decode(golden_ids, true));
    }
  }

  void CheckStream(const Json& item) {
    StreamDecoder decoder(&tokenizer_, false);
    Json deltas = Json::array();
    for (int32_t id : item["ids"].get<std::vector<int32_t>>()) deltas.push_back(decoder.Push(id));
    deltas.push_back(decoder.Flush());
    Expect(item["name"].get<std::string>() + " deltas", item["deltas"], deltas);
  }

  int checks() const { return checks_; }
  int failures() const { return failures_; }

 private:
  void Expect(const std::string& what, const Json& expected, const Json& got) {
    ++checks_;
    if (expected == got) return;
    ++failures_;
    std::printf("%s\n  expected %s\n  got      %s\n", what.c_str(), DumpJson(expected).c_str(),
                DumpJson(got).c_str());
  }

  const Tokenizer& tokenizer_;
  int checks_ = 0, failures_ = 0;
};

absl::StatusOr<int> Run(const std::string& golden_path, const std::string& vocabulary_path,
                        const std::string& strings_path) {
  KT_ASSIGN_OR_RETURN(Json golden, ReadJsonFile(golden_path));
  KT_ASSIGN_OR_RETURN(Json strings, ReadJsonFile(strings_path));
  KT_ASSIGN_OR_RETURN(auto tokenizer, LoadVocabulary(golden, vocabulary_path));
  std::map<std::string, std::string> text_by_name;
  for (const Json& item : strings) text_by_name[item["name"]] = item["text"];
  Checker checker(*tokenizer);
  for (const Json& item : golden["cases"])
    checker.CheckCase(item, item.value("text", text_by_name[item["name"]]));
  for (const Json& item : golden["streams"]) {
    if (item.contains("ids"))
      checker.CheckStream(item);  // absent: the vocabulary lacks a token for one of the bytes
  }
  std::printf("%d checks, %d differences\n", checker.checks(), checker.failures());
  return checker.failures();
}

}  // namespace
}  // namespace kt

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: tokenizer_golden_check GOLDEN.json VOCABULARY STRINGS.json\n");
    return 2;
  }
  auto failures = kt::Run(argv[1], argv[2], argv[3]);
  if (!failures.ok()) {
    std::fprintf(stderr, "%s\n", kt::Message(failures.status()).c_str());
    return 2;
  }
  return *failures == 0 ? 0 : 1;
}
