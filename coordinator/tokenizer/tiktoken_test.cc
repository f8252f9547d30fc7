// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/tiktoken.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/escaping.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/stop_tokens.h"

namespace kt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kBase = 260;  // tokens of Vocabulary()

std::string Line(const std::string& bytes, int rank) {
  std::string encoded;
  absl::Base64Escape(bytes, &encoded);
  return encoded + " " + std::to_string(rank) + "\n";
}

// All bytes in order, then some words.
std::string Vocabulary() {
  std::string text;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte)
    text += Line(std::string(1, static_cast<char>(byte)), rank++);
  for (const char* token : {"ab", "bc", "abc", "漢"}) text += Line(token, rank++);
  return text;
}

Json Config(const Json& named) {
  return {{"tokenizer_class", "TikTokenTokenizer"}, {"added_tokens_decoder", named}};
}

Json Named(int32_t id, const char* content, bool special = true) {
  return {{std::to_string(id), {{"content", content}, {"special", special}}}};
}

std::string Error(const std::string& vocabulary, const Json& config) {
  auto status = ParseKimiTiktoken(vocabulary, config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return Message(status);
}

TEST(TiktokenTest, NamesFlagsAndReservedTokensStandBehindTheFile) {
  Json named = Named(kBase, "[BOS]");
  named.update(Named(kBase + 1, "<|tool|>", false));
  named.update(Named(kBase + 255, "[PAD]"));
  auto tokenizer = ParseKimiTiktoken(Vocabulary(), Config(named));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const Tokenizer& t = **tokenizer;
  EXPECT_EQ(t.vocab_size(), kBase + 256);
  EXPECT_THAT(*t.Encode("[BOS]abc<|tool|><|reserved_token_262|>[PAD]"),
              ElementsAre(kBase, 258, kBase + 1, kBase + 2, kBase + 255));
  EXPECT_TRUE(t.IsSpecial(kBase));
  EXPECT_FALSE(t.IsSpecial(kBase + 1));
  EXPECT_EQ(t.TokenId("[PAD]"), kBase + 255);
  EXPECT_EQ(t.Decode(std::vector<int32_t>{kBase, 258, kBase + 1}, true), "abc<|tool|>");
}

TEST(TiktokenTest, NamesMayBeAbsent) {
  for (const Json& named : {Json(), Json::object()})
    EXPECT_EQ((*ParseKimiTiktoken(Vocabulary(), Config(named)))->vocab_size(), kBase + 256);
}

TEST(TiktokenTest, VocabulariesCutOffAnywhereAreRefused) {
  const std::string whole = Vocabulary();
  const Json config = Config(Named(kBase + 255, "[PAD]"));
  ASSERT_TRUE(ParseKimiTiktoken(whole, config).ok());
  ASSERT_TRUE(ParseKimiTiktoken(whole.substr(0, whole.size() - 1), config).ok());  // line break
  for (size_t size = 0; size + 1 < whole.size(); ++size)
    ASSERT_FALSE(ParseKimiTiktoken(whole.substr(0, size), config).ok()) << size;
  // At the end of a line.
  EXPECT_THAT(Error(whole.substr(0, whole.rfind('\n', whole.size() - 2) + 1), config),
              AllOf(HasSubstr("[PAD]"), HasSubstr("has 259 tokens"), HasSubstr("cut off")));
}

TEST(TiktokenTest, EveryFaultIsNamed) {
  const Json good = Config(Json::object());
  const std::string whole = Vocabulary();
  const std::pair<std::string, const char*> kBadFiles[] = {
      {"", "byte 0 has no token"},
      {"nothing\n", "line 1: expected a token"},
      {Line("a", 0) + "!!!! 1\n", "line 2: expected a token"},
      {" 5\n", "line 1: expected a token"},
      {Line(std::string(1025, 'x'), 0), "1 to 1024 bytes"},
      {"YQ==\t0\n", "line 1"},
      {"YQ== zero\n", "expected a rank"},
      {"YQ== 0\r\n", "expected a rank"},
      {"YQ== 99999999999\n", "expected a rank"},
      {"YQ== -1\n", "must be between 0 and 1048575"},
      {"YQ== 1048576\n", "must be between 0 and 1048575"},
      {whole + Line("zz", 258), "\"zz\": id 258 is taken"},
      {whole + Line("abc", 260), "\"abc\" is in the vocabulary twice"},
      {whole + Line("zz", 300), "\"<|reserved_token_300|>\": id 300 is taken"},
  };
  for (const auto& [file, part] : kBadFiles) EXPECT_THAT(Error(file, good), HasSubstr(part));

  const std::pair<Json, const char*> kBadConfigs[] = {
      {Json(), "tokenizer_class \"null\""},
      {Json::array(), "tokenizer_class"},
      {{{"tokenizer_class", "Qwen2Tokenizer"}}, "\"Qwen2Tokenizer\""},
      {{{"tokenizer_class", 5}}, "tokenizer_class"},
      {Config(7), "added_tokens_decoder must be an object, got 7"},
      {Config({{"x", {{"content", "a"}}}}), "must be a token id"},
      {Config({{"260", 5}}), "added_tokens_decoder[\"260\"]"},
      {Config({{"260", {{"special", true}}}}), "content is missing"},
      {Config(Named(kBase + 256, "[PAD]")), "ids 260 to 515"},
      {Config(Named(5, "[BOS]")), "names token 5 (\"[BOS]\")"},
      {Config(Named(kBase, "abc")), "\"abc\": its id is 260, the vocabulary has 258"},
  };
  for (const auto& [config, part] : kBadConfigs) EXPECT_THAT(Error(whole, config), HasSubstr(part));
  Json twice = Named(kBase, "[BOS]");
  twice.update(Named(kBase + 1, "[BOS]"));
  EXPECT_THAT(Error(whole, Config(twice)), HasSubstr("\"[BOS]\": its id is 261"));
}

TEST(TiktokenTest, FilesAreBounded) {
  const std::string path = testing::TempDir() + "/tiktoken_test.model";
  std::ofstream(path).close();
  truncate(path.c_str(), (int64_t{64} << 20) + 1);
  auto status = LoadKimiTiktoken(path, Json::object()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), AllOf(HasSubstr(path), HasSubstr("67108864")));
  EXPECT_EQ(LoadKimiTiktoken(path + ".absent", Json::object()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(LoadKimiTiktoken(testing::TempDir(), Json::object()).ok());
  unlink(path.c_str());
}

TEST(StopTokensTest, UnionOfTheModelsAndTheTokenizersOwn) {
  auto tokenizer = ParseKimiTiktoken(Vocabulary(), Config(Named(kBase, "[EOS]")));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(StopTokenIds({7, 9}, **tokenizer, "[EOS]", 512), ElementsAre(7, 9, kBase));
  EXPECT_THAT(StopTokenIds({7, kBase}, **tokenizer, "[EOS]", 512), ElementsAre(7, kBase));
  EXPECT_THAT(StopTokenIds({7}, **tokenizer, "", 512), ElementsAre(7));
  EXPECT_THAT(StopTokenIds({7}, **tokenizer, "</s>", 512), ElementsAre(7));
  EXPECT_THAT(StopTokenIds({7}, **tokenizer, "[EOS]", kBase), ElementsAre(7));
}

}  // namespace
}  // namespace kt
