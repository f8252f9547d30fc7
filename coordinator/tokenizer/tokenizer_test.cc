// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/tokenizer_json.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kData = KT_SOURCE_DIR "/tests/data/tokenizer";
using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> Fixture() {
  auto tokenizer = Tokenizer::Load(kData);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// A vocabulary of the letters a to e, space (spelled Ġ) and some of their pairs; "{}" gets
// `fields`.
Json Small(const Json& fields = Json::object()) {
  Json json =
      *ParseJson(R"({"normalizer": null, "decoder": {"type": "ByteLevel"}, "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "Ġ": 5, "ab": 6, "bc": 7, "abc": 8, "cd": 9, "漢": 10, "Ã": 11, "©": 12},
              "merges": ["b c", ["a", "b"], "a bc", "c d"]}})");
  if (fields.is_object()) json.merge_patch(fields);
  return json;
}

std::unique_ptr<Tokenizer> Load(const Json& json, const Json& config = Json()) {
  auto tokenizer = ParseTokenizerJson(DumpJson(json), config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

Ids Encode(const Json& fields, const std::string& text) {
  auto ids = Load(Small(fields))->Encode(text);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return *ids;
}

TEST(TokenizerTest, GoldensOfTheFixture) {
  auto tokenizer = Fixture();
  Json golden = *ReadJsonFile(kData + "/tokenizer_golden.json");
  ASSERT_GT(golden["encode"].size() + golden["chat"].size(), 10u);
  for (const char* part : {"encode", "chat"}) {
    for (const Json& item : golden[part]) {
      Ids ids = item["ids"];
      std::string text = item["text"];
      EXPECT_EQ(*tokenizer->Encode(text), ids) << text;
      if (!item.contains("decoded")) continue;
      EXPECT_EQ(tokenizer->Decode(ids, false), item["decoded"].get<std::string>());
      StreamDecoder stream(tokenizer.get(), false);
      std::string streamed;
      for (int32_t id : ids) {
        std::string delta = stream.Push(id);
        EXPECT_EQ(delta.find("\uFFFD"), std::string::npos);
        streamed += delta;
      }
      EXPECT_EQ(streamed + stream.Flush(), item["decoded"].get<std::string>());
    }
  }
}

TEST(TokenizerTest, TokensAreKnownByNameAndFlag) {
  auto tokenizer = Fixture();
  EXPECT_EQ(tokenizer->TokenId("<|im_end|>"), 490);
  EXPECT_EQ(tokenizer->TokenId("Ġt"), tokenizer->Encode(" t")->at(0));
  EXPECT_EQ(tokenizer->TokenId("no such token"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(490));
  EXPECT_FALSE(tokenizer->IsSpecial(491));
  EXPECT_EQ(tokenizer->vocab_size(), 495);
  EXPECT_EQ(tokenizer->Decode(Ids{490, 491, 489}, true), "<think>");
  for (int32_t id : {-1, 495, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
    EXPECT_FALSE(tokenizer->IsSpecial(id));
  }
  EXPECT_EQ(tokenizer->Decode(Ids{-5, 1 << 30}, false), "");
}

TEST(TokenizerTest, InvalidUtf8IsInvalidArgument) {
  auto status = Fixture()->Encode("ab\xFF").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("byte 2"));
}

TEST(TokenizerTest, LongTextsOfAnyKindComeBack) {
  auto tokenizer = Fixture();
  for (const char* unit :
       {"a", " ", "ab", "\n", "漢", "a ", "<|im_end|>", "<|", "\u0915\u093F", "1"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(tokenizer->Decode(*ids, false), text);
  }
}

TEST(TokenizerTest, UnsortedCombiningMarksTakeNoQuadraticTime) {
  std::string text = "a";
  while (text.size() < 1'000'000) text += "\u0315\u0316\u0F73";  // classes 232, 220 and 129 + 130
  EXPECT_TRUE(Fixture()->Encode(text).ok());
}

TEST(BpeTest, LowestRankIsMergedFirstLeftmostFirst) {
  EXPECT_THAT(Encode({}, "abcd"), ElementsAre(8, 3));
  EXPECT_THAT(Encode({}, "abab"), ElementsAre(6, 6));
  EXPECT_THAT(Encode({}, "bcd ab"), ElementsAre(7, 3, 5, 6));
}

TEST(BpeTest, IgnoreMergesTakesWholePieces) {
  Json whole = {{"model", {{"ignore_merges", true}, {"merges", Json::array()}}}};
  EXPECT_THAT(Encode(whole, "abc"), ElementsAre(8));
  EXPECT_THAT(Encode(whole, "abcd"), ElementsAre(0, 1, 2, 3));
}

TEST(BpeTest, BytesWithoutTokenAreDroppedOrUnknown) {
  EXPECT_THAT(Encode({}, "axbz"), ElementsAre(6));
  EXPECT_THAT(Encode({{"model", {{"unk_token", "e"}}}}, "axxb"), ElementsAre(0, 4, 4, 1));
  EXPECT_THAT(Encode({{"model", {{"unk_token", "e"}, {"fuse_unk", true}}}}, "axxb"),
              ElementsAre(0, 4, 1));
}

TEST(BpeTest, BytesAreDecodedTogether) {
  auto tokenizer = Load(Small());
  EXPECT_EQ(tokenizer->Decode(Ids{11, 12}, false), "é");
  EXPECT_EQ(tokenizer->Decode(Ids{11, 0}, false), "\uFFFDa");
  EXPECT_EQ(tokenizer->Decode(Ids{10}, false), "漢");  // no byte spelling: it is its own text
  EXPECT_EQ(tokenizer->TokenId("漢"), 10);
}

Json Added(const Json& flags) {
  Json token = {{"id", 20},        {"content", "<t>"}, {"special", false},    {"normalized", false},
                {"lstrip", false}, {"rstrip", false},  {"single_word", false}};
  if (flags.is_object()) token.merge_patch(flags);
  return {{"added_tokens", Json::array({token})}};
}

TEST(AddedTokensTest, FlagsDecideWhatIsTaken) {
  EXPECT_THAT(Encode(Added({}), "a <t> b"), ElementsAre(0, 5, 20, 5, 1));
  EXPECT_THAT(Encode(Added({{"lstrip", true}}), "a  <t> b"), ElementsAre(0, 20, 5, 1));
  EXPECT_THAT(Encode(Added({{"rstrip", true}}), "a <t>  b"), ElementsAre(0, 5, 20, 1));
  EXPECT_THAT(Encode(Added({{"single_word", true}, {"content", "dd"}}), "add dd dde"),
              ElementsAre(0, 3, 3, 5, 20, 5, 3, 3, 4));
  Json lower = Added({{"normalized", true}, {"content", "<T>"}});
  lower["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_THAT(Encode(lower, "A<t><T>"), ElementsAre(0, 20, 20));
  lower["added_tokens"][0]["normalized"] = false;
  EXPECT_THAT(Encode(lower, "A<T>"), ElementsAre(0, 20));
  EXPECT_THAT(Encode(lower, "A<t>"), ElementsAre(0));
}

TEST(AddedTokensTest, LongestOfThoseThatBeginFirst) {
  Json two = Added({{"content", "ab"}});
  two["model"] = {{"vocab", {{"ab", nullptr}, {"abc", nullptr}}}, {"merges", Json::array()}};
  two["added_tokens"].push_back({{"id", 21}, {"content", "abcd"}, {"special", true}});
  EXPECT_THAT(Encode(two, "abcabcd"), ElementsAre(20, 2, 21));
}

TEST(AddedTokensTest, ConfigAddsTokensAndOverridesFlags) {
  Json config = {{"added_tokens_decoder",
                  {{"20", {{"content", "<t>"}, {"special", true}}},
                   {"21", {{"content", "<u>"}, {"special", true}}}}}};
  auto tokenizer = Load(Small(Added({})), config);
  EXPECT_TRUE(tokenizer->IsSpecial(20));
  EXPECT_THAT(*tokenizer->Encode("a<u>"), ElementsAre(0, 21));
  EXPECT_FALSE(Load(Small(Added({})))->IsSpecial(20));
}

Ids Normalized(const Json& normalizer, const std::string& text) {
  return Encode({{"normalizer", normalizer}}, text);
}

TEST(NormalizerTest, EveryKind) {
  EXPECT_THAT(Normalized({{"type", "NFC"}}, "e\u0301"), ElementsAre(11, 12));
  EXPECT_THAT(Normalized({{"type", "NFD"}}, "\u00E9"), ElementsAre(4));
  EXPECT_THAT(Normalized({{"type", "NFKC"}}, "\uFF41"), ElementsAre(0));
  EXPECT_THAT(Normalized({{"type", "NFKD"}}, "\uFF41\u0301"), ElementsAre(0));
  EXPECT_THAT(Normalized({{"type", "Lowercase"}}, "ABÉ"), ElementsAre(6, 11, 12));
  EXPECT_THAT(Normalized({{"type", "Prepend"}, {"prepend", "d"}}, "a"), ElementsAre(3, 0));
  EXPECT_THAT(Normalized({{"type", "Prepend"}, {"prepend", "d"}}, ""), IsEmpty());
  EXPECT_THAT(
      Normalized({{"type", "Replace"}, {"pattern", {{"String", "a."}}}, {"content", "b"}}, "a.ac"),
      ElementsAre(1, 0, 2));
  EXPECT_THAT(
      Normalized({{"type", "Replace"}, {"pattern", {{"Regex", "a."}}}, {"content", "b"}}, "a.ac"),
      ElementsAre(1, 1));
  EXPECT_THAT(
      Normalized({{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}}, " \u3000a "),
      ElementsAre(0, 5));
  EXPECT_THAT(
      Normalized(
          *ParseJson(
              R"({"type": "Sequence", "normalizers": [{"type": "Strip"}, {"type": "Lowercase"}]})"),
          " A "),
      ElementsAre(0));
}

// Pieces show as tokens of their own when the vocabulary has the whole text.
std::vector<std::string> Pieces(const Json& step, const std::string& text) {
  Json json = Small();
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {step, json["pre_tokenizer"]}}};
  json["model"] = {{"vocab", Json::object()}, {"merges", Json::array()}, {"ignore_merges", true}};
  int id = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    for (size_t n = 1; i + n <= text.size(); ++n) {
      std::string part = text.substr(i, n), spelled;
      for (char c : part) spelled += c == ' ' ? "Ġ" : std::string(1, c);
      if (!json["model"]["vocab"].contains(spelled)) json["model"]["vocab"][spelled] = id++;
    }
  }
  auto tokenizer = Load(json);
  std::vector<std::string> pieces;
  const Ids ids = *tokenizer->Encode(text);  // a range-for over the StatusOr's value would outlive it
  for (int32_t token : ids) pieces.push_back(tokenizer->TokenBytes(token));
  return pieces;
}

TEST(PreTokenizerTest, SplitBehaviours) {
  auto split = [](const char* behavior, bool invert) {
    return Pieces({{"type", "Split"},
                   {"pattern", {{"String", "-"}}},
                   {"behavior", behavior},
                   {"invert", invert}},
                  "a--b-c");
  };
  EXPECT_THAT(split("Removed", false), ElementsAre("a", "b", "c"));
  EXPECT_THAT(split("Isolated", false), ElementsAre("a", "-", "-", "b", "-", "c"));
  EXPECT_THAT(split("MergedWithPrevious", false), ElementsAre("a-", "-", "b-", "c"));
  EXPECT_THAT(split("MergedWithNext", false), ElementsAre("a", "-", "-b", "-c"));
  EXPECT_THAT(split("Contiguous", false), ElementsAre("a", "--", "b", "-", "c"));
  EXPECT_THAT(split("Removed", true), ElementsAre("-", "-", "-"));
  EXPECT_THAT(Pieces({{"type", "Split"},
                      {"pattern", {{"Regex", "[a-c]+"}}},
                      {"behavior", "Removed"},
                      {"invert", true}},
                     "ab cd"),
              ElementsAre("ab", "c"));
}

TEST(PreTokenizerTest, EveryKind) {
  EXPECT_THAT(Pieces({{"type", "Digits"}, {"individual_digits", true}}, "a12b"),
              ElementsAre("a", "1", "2", "b"));
  EXPECT_THAT(Pieces({{"type", "Digits"}, {"individual_digits", false}}, "a12b"),
              ElementsAre("a", "12", "b"));
  EXPECT_THAT(Pieces({{"type", "Whitespace"}}, "ab, c"), ElementsAre("ab", ",", "c"));
  EXPECT_THAT(Pieces({{"type", "WhitespaceSplit"}}, "ab, c"), ElementsAre("ab,", "c"));
  EXPECT_THAT(Pieces({{"type", "Punctuation"}}, "a+b,,c"),
              ElementsAre("a", "+", "b", ",", ",", "c"));
  EXPECT_THAT(Pieces({{"type", "Punctuation"}, {"behavior", "Contiguous"}}, "b,,c"),
              ElementsAre("b", ",,", "c"));
}

TEST(PreTokenizerTest, ByteLevelSplitsAndPrefixesASpace) {
  Json fields = {
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}}},
      {"model", {{"vocab", {{"Ġa", 30}}}, {"merges", Json::array({"Ġ a"})}}}};
  EXPECT_THAT(Encode(fields, "a a  a"), ElementsAre(30, 30, 5, 30));
  EXPECT_THAT(Encode(fields, ""), IsEmpty());
}

TEST(TokenizerJsonTest, WhatIsNotSupportedIsNamed) {
  const std::pair<Json, const char*> kBad[] = {
      {{{"model", {{"type", "Unigram"}}}}, "\"Unigram\" is not supported; supported is BPE"},
      {{{"model", {{"vocab", nullptr}}}}, "model.vocab"},
      {{{"model", {{"byte_fallback", true}}}}, "byte_fallback"},
      {{{"model", {{"dropout", 0.1}}}}, "dropout 0.1"},
      {{{"model", {{"continuing_subword_prefix", "##"}}}}, "continuing_subword_prefix \"##\""},
      {{{"model", {{"unk_token", "<unk>"}}}}, "unk_token \"<unk>\""},
      {{{"model", {{"merges", {"a"}}}}}, "model.merges[0]"},
      {{{"model", {{"merges", {"a b", "a x"}}}}}, "model.merges[1]: \"x\""},
      {{{"model", {{"merges", {{"a", "b", "c"}}}}}}, "model.merges[0]"},
      {{{"model", {{"vocab", {{"q", -1}}}}}}, "\"q\""},
      {{{"model", {{"vocab", {{"q", 1 << 20}}}}}}, "\"q\""},
      {{{"model", {{"vocab", {{"q", "x"}}}}}}, "\"q\""},
      {{{"model", {{"vocab", {{"q", 0}}}}}}, "id 0 is taken"},
      {{{"decoder", {{"type", "Metaspace"}}}},
       "decoder: type \"Metaspace\" is not supported; supported is ByteLevel"},
      {{{"decoder", nullptr}}, "decoder"},
      {{{"normalizer", {{"type", "BertNormalizer"}}}},
       "normalizer: type \"BertNormalizer\" is not supported; supported are NFC"},
      {{{"pre_tokenizer", {{"type", "Metaspace"}}}},
       "pre_tokenizer: type \"Metaspace\" is not supported; supported are Split"},
      {{{"pre_tokenizer", {{"type", "Digits"}}}}, "must end in ByteLevel"},
      {{{"pre_tokenizer", nullptr}}, "pre_tokenizer"},
      {{{"pre_tokenizer", {{"type", "Split"}}}}, "pattern"},
      {{{"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "\\R"}}}}}}, "not supported"},
      {{{"pre_tokenizer",
         {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Odd"}}}},
       "behavior"},
      {{{"pre_tokenizer",
         {{"type", "Sequence"},
          {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}}}},
       "after ByteLevel"},
      {Added({{"id", nullptr}}), "added_tokens[0]: id"},
      {Added({{"id", 3}}), "id 3 is taken"},
      {Added({{"content", "a"}}), "its id is 20, the vocabulary has 0"},
      {Added({{"content", nullptr}}), "added_tokens[0]: content"},
      {Added({{"special", "yes"}}), "added_tokens[0]: special"},
  };
  for (const auto& [fields, part] : kBad) {
    Json json = Small();
    for (const auto& [key, value] : fields.items()) {
      if (value.is_null())
        json.erase(key);
      else if (key == "model")
        json[key].merge_patch(value);
      else
        json[key] = value;
    }
    auto status = ParseTokenizerJson(DumpJson(json), Json()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(Message(status), HasSubstr(part));
  }
}

class ModelDirTest : public testing::Test {
 protected:
  ModelDirTest() : dir_(testing::TempDir() + "/tokenizer_test." + std::to_string(getpid())) {
    std::filesystem::create_directory(dir_);
  }
  ~ModelDirTest() override { std::filesystem::remove_all(dir_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ + "/" + name) << text;
  }

  const std::string dir_;
};

TEST_F(ModelDirTest, ErrorsNameTheFile) {
  EXPECT_EQ(Tokenizer::Load(dir_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Tokenizer::Load(dir_ + "/absent.json").status().code(), absl::StatusCode::kNotFound);
  for (const char* text : {"", "{", "[]", "7", "{}", "\xFF"}) {
    Write("tokenizer.json", text);
    auto status = Tokenizer::Load(dir_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(Message(status), HasSubstr(dir_ + "/tokenizer.json"));
  }
}

std::string TiktokenLine(const std::string& bytes, int rank) {
  std::string encoded;
  absl::Base64Escape(bytes, &encoded);
  return encoded + " " + std::to_string(rank) + "\n";
}

// All bytes in order, then some words.
std::string TiktokenFile() {
  std::string text;
  for (int byte = 0; byte < 256; ++byte)
    text += TiktokenLine(std::string(1, static_cast<char>(byte)), byte);
  int rank = 256;
  for (const char* token : {"ab", "bc", "abc", "漢"}) text += TiktokenLine(token, rank++);
  return text;
}

TEST_F(ModelDirTest, KimiVocabularyIsTiktokenWithTheSplitOfItsCode) {
  Write("tiktoken.model", TiktokenFile());
  Write("tokenizer_config.json", R"({"tokenizer_class": "TikTokenTokenizer",
                                     "added_tokens_decoder": {"260": {"content": "[BOS]", "special": true, "normalized": false}}})");
  auto tokenizer = Tokenizer::Load(dir_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("[BOS]ab bcd"), ElementsAre(260, 256, ' ', 257, 'd'));
  EXPECT_THAT(*(*tokenizer)->Encode("ab漢"), ElementsAre(256, 259));
  EXPECT_THAT(*(*tokenizer)->Encode("<|reserved_token_300|>"), ElementsAre(300));
  EXPECT_EQ((*tokenizer)->vocab_size(), 260 + 256);
  EXPECT_TRUE((*tokenizer)->IsSpecial(260));
  EXPECT_FALSE((*tokenizer)->IsSpecial(300));
}

TEST_F(ModelDirTest, TiktokenErrorsNameFileAndLine) {
  const std::string kimi = R"({"tokenizer_class": "TikTokenTokenizer"})";
  const std::tuple<std::string, std::string, const char*> kBad[] = {
      {TiktokenFile(), "{}", "tokenizer_class"},   {"YQ== 0\nnothing\n", kimi, "line 2"},
      {"YQ== 0\n!!!! 1\n", kimi, "line 2"},        {"YQ== zero\n", kimi, "line 1"},
      {"YQ== -1\n", kimi, "id must be between"},   {"YQ== 0\nYQ== 1\n", kimi, "twice"},
      {"YQ== 0\nYg== 0\n", kimi, "id 0 is taken"}, {"YQ== 0\n", kimi, "byte 0 has no token"},
  };
  for (const auto& [ranks, config, part] : kBad) {
    Write("tiktoken.model", ranks);
    Write("tokenizer_config.json", config);
    auto status = Tokenizer::Load(dir_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(Message(status), HasSubstr(part));
    EXPECT_THAT(Message(status), HasSubstr("tiktoken.model"));
  }
}

TEST(StreamDecoderTest, NeverSplitsACharacter) {
  auto tokenizer = Load(Small());
  StreamDecoder stream(tokenizer.get(), true);
  EXPECT_EQ(stream.Push(11), "");
  EXPECT_EQ(stream.Push(12), "é");
  EXPECT_EQ(stream.Push(11), "");
  EXPECT_EQ(stream.Push(0), "\uFFFDa");
  EXPECT_EQ(stream.Push(11), "");
  EXPECT_EQ(stream.Push(9999), "");
  EXPECT_EQ(stream.Flush(), "\uFFFD");
  EXPECT_EQ(stream.Flush(), "");
}

TEST(StreamDecoderTest, SpecialTokensAreSkippedOnRequest) {
  auto tokenizer = Fixture();
  StreamDecoder skipping(tokenizer.get(), true), keeping(tokenizer.get(), false);
  EXPECT_EQ(skipping.Push(490) + skipping.Push(491), "<think>");
  EXPECT_EQ(keeping.Push(490), "<|im_end|>");
}

}  // namespace
}  // namespace kt
