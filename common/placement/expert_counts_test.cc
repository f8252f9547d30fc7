// SPDX-License-Identifier: Apache-2.0
#include "common/placement/expert_counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "common/base/status.h"
#include "common/placement/pickle.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kData = KT_SOURCE_DIR "/tests/data/expert_counts/";

std::vector<uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::vector<uint8_t> FileBytes(const std::string& name) {
  std::ifstream file(kData + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string JsonError(const std::string& text) {
  return Message(JsonExpertCounts(ParseJson(text).value()).status());
}

TEST(ExpertCountsTest, EveryFormOfTheSameCountsReadsAlike) {
  auto expected = ReadExpertCounts(kData + "counts.json");
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_EQ(expected->size(), 4u);
  EXPECT_EQ((*expected)[0].size(), 16u);
  EXPECT_EQ((*expected)[0][0], 1463);
  EXPECT_EQ((*expected)[3][15], 1282);
  for (const char* name : {"dict_int64.pt", "bare_int64.pt", "bare_int32.pt", "strided_float32.pt",
                           "bare_float64.pt"}) {
    auto counts = ReadExpertCounts(kData + name);
    ASSERT_TRUE(counts.ok()) << name << counts.status();
    EXPECT_EQ(*counts, *expected) << name;
  }
}

TEST(ExpertCountsTest, ReadsJsonOfOnePassOrSeveral) {
  EXPECT_THAT(*JsonExpertCounts(*ParseJson(R"({"logical_count": [[1, 2], [3, 4.5]]})")),
              ElementsAre(ElementsAre(1, 2), ElementsAre(3, 4.5)));
  EXPECT_THAT(*JsonExpertCounts(*ParseJson(R"({"logical_count": [[[1, 2]], [[3, 4]]]})")),
              ElementsAre(ElementsAre(4, 6)));
}

TEST(ExpertCountsTest, RefusesOtherJson) {
  EXPECT_THAT(JsonError("[]"), HasSubstr("has no logical_count"));
  EXPECT_THAT(JsonError(R"({"logical_count": 3})"), HasSubstr("3, expected a list of layers"));
  EXPECT_THAT(JsonError(R"({"logical_count": []})"), HasSubstr("expected a list of layers"));
  EXPECT_THAT(JsonError(R"({"logical_count": [[]]})"), HasSubstr("expected a list of counts"));
  EXPECT_THAT(JsonError(R"({"logical_count": [[1], [1, 2]]})"),
              HasSubstr("a layer of 2 experts beside one of 1"));
  EXPECT_THAT(JsonError(R"({"logical_count": [[[1]], [[1], [2]]]})"),
              HasSubstr("a pass of 2 layers beside one of 1"));
  EXPECT_THAT(JsonError(R"({"logical_count": [[-1]]})"), HasSubstr("not negative"));
  EXPECT_THAT(JsonError(R"({"logical_count": [["x"]]})"), HasSubstr("not negative"));
}

TEST(ExpertCountsTest, RefusesOtherTensors) {
  const std::pair<const char*, const char*> cases[] = {
      {"half.pt", "elements of \"torch.HalfStorage\""},
      {"negative.pt", "-1, expected counts"},
      {"vector.pt", "1 dimensions"},
      {"expanded.pt", "larger than its storage"},
      {"no_counts.pt", "has no logical_count"},
      {"text.pt", "is not a plain tensor"},
      {"compressed.pt", "an entry is compressed"},
      {"code.pt", "is not a plain tensor"}};
  for (const auto& [name, error] : cases) {
    const absl::Status status = ReadExpertCounts(kData + "refused/" + name).status();
    EXPECT_THAT(Message(status), HasSubstr(error)) << name;
    EXPECT_THAT(Message(status), HasSubstr(name));
  }
  EXPECT_FALSE(ReadExpertCounts(kData + "nothing.pt").ok());
}

TEST(ExpertCountsTest, NoCutOfAFileIsRead) {
  const std::vector<uint8_t> whole = FileBytes("bare_int64.pt");
  ASSERT_TRUE(TorchExpertCounts(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(TorchExpertCounts(std::span(whole).first(size)).ok()) << size;
}

TEST(ExpertCountsTest, ShapesMustBeTheModels) {
  ModelConfig model;
  model.moes.resize(1);
  model.moes[0].num_experts = 2;
  model.layers.resize(2);
  model.layers[1].moe = 0;
  EXPECT_TRUE(CheckShape({{0, 0}, {1, 2}}, model).ok());
  EXPECT_EQ(Message(CheckShape({{0, 0, 0}}, model)),
            "its counts are of 1 layers and 3 experts, the model has 2 layers and 2 experts");
}

TEST(PickleTest, RefusesWhatIsNotPlainData) {
  const std::pair<const char*, const char*> cases[] = {{"", "cut short"},
                                                       {"K", "cut short"},
                                                       {".", "another number of values"},
                                                       {"NN.", "another number"},
                                                       {"t.", "no mark"},
                                                       {"R.", "more values"},
                                                       {"(R.", "more values"},
                                                       {"h\x01.", "not remembered"},
                                                       {"q\x01.", "remembers nothing"},
                                                       {"NNs.", "to nothing"},
                                                       {"]NNs.", "another kind"},
                                                       {"}(Nu.", "another kind"},
                                                       {"]N(at.", "below a mark"},
                                                       {"i.", "none of plain data"},
                                                       {"X\xff\xff\xff\xff.", "cut short"},
                                                       {"\x8a\x09", "more than 64 bits"}};
  for (const auto& [text, error] : cases) {
    auto pickle = Pickle::Parse(Bytes(text));
    EXPECT_FALSE(pickle.ok()) << text;
    EXPECT_THAT(Message(pickle.status()), HasSubstr(error)) << text;
  }
}

TEST(PickleTest, NumbersAndCallsAreValues) {
  using namespace std::string_literals;
  auto pickle =
      Pickle::Parse(Bytes("\x80\x02}(X\x01\0\0\0"s + "aJ\xfe\xff\xff\xff"s + "X\x01\0\0\0"s +
                          "b\x8a\x02\xff\xfe"s + "X\x01\0\0\0"s + "ccos\nsystem\n)Ru."s));
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  EXPECT_EQ(pickle->Find(pickle->root(), "a")->number, -2);
  EXPECT_EQ(pickle->Find(pickle->root(), "b")->number, -257);
  const PickleValue& call = *pickle->Find(pickle->root(), "c");
  EXPECT_EQ(call.kind, PickleValue::Kind::kCall);
  EXPECT_EQ(pickle->at(call.items[0]).text, "os.system");
  EXPECT_EQ(pickle->Find(pickle->root(), "d"), nullptr);
}

}  // namespace
}  // namespace kt
