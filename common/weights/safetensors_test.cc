// SPDX-License-Identifier: Apache-2.0
#include "common/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/weights/test_checkpoint.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<std::vector<SafetensorsEntry>> Parse(const std::string& bytes) {
  return ParseSafetensors({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

std::string Refusal(const std::string& bytes) {
  auto entries = Parse(bytes);
  return entries.ok() ? "accepted" : Message(entries.status());
}

TEST(SafetensorsTest, ReadsTensorsInTheOrderOfTheirBytes) {
  std::string bytes = ShardBytes(
      R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[6,10]},"__metadata__":{"format":"pt"},)"
      R"("a":{"shape":[3],"data_offsets":[0,6],"dtype":"BF16"},"none":{"dtype":"U8","shape":[0,5],"data_offsets":[6,6]}}   )",
      "abcdefghij");
  auto entries = Parse(bytes).value();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].dtype, DType::kBF16);
  EXPECT_THAT(entries[0].shape, ElementsAre(3));
  EXPECT_EQ(entries[0].data[5], 'f');
  EXPECT_EQ(entries[1].name, "none");
  EXPECT_EQ(entries[2].data.size(), 4u);
}

TEST(SafetensorsTest, TenMegabytesOfHeaderAreRead) {
  std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})" + std::string(10 << 20, ' ');
  EXPECT_EQ(Parse(ShardBytes(header, "x")).value().size(), 1u);
}

TEST(SafetensorsTest, FilesThatAreSomethingElseAreNamed) {
  EXPECT_THAT(Refusal(""), HasSubstr("it has 0 bytes"));
  EXPECT_THAT(Refusal("<!DOCTYPE html><html><body>404</body></html>"), HasSubstr("HTML page"));
  EXPECT_THAT(Refusal("\n <html>and more</html>"), HasSubstr("HTML page"));
  EXPECT_THAT(Refusal("version https://git-lfs.github.com/spec/v1\noid"),
              HasSubstr("git lfs pull"));
  EXPECT_THAT(Refusal(std::string(16, '\xff')),
              HasSubstr("header length 18446744073709551615 is above"));
  EXPECT_THAT(Refusal(std::string(16, '\0') + "x"), HasSubstr("not valid JSON"));
}

TEST(SafetensorsTest, TruncatedFilesAreRefused) {
  std::string whole = ShardBytes({{"a", {DType::kU8, {100}, std::string(100, 'x')}}});
  ASSERT_EQ(Refusal(whole), "accepted");
  EXPECT_THAT(Refusal(whole.substr(0, whole.size() - 40)),
              HasSubstr("truncated: \"a\" needs bytes up to 100, the file holds 60"));
  EXPECT_THAT(Refusal(whole.substr(0, 20)), HasSubstr("truncated: the header has"));
  EXPECT_THAT(Refusal(whole + "!"), HasSubstr("1 bytes follow the last tensor"));
}

TEST(SafetensorsTest, BadHeadersAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "not an object"},
      {"7", "not an object"},
      {"{", "not valid JSON"},
      {"{} x", "not valid JSON"},
      {R"({"a":5})", "\"a\" may not hold 5"},
      {R"({"a":{}})", "\"a\" has no dtype"},
      {R"({"a":{"dtype":"BF16","shape":[1]}})", "\"a\" has no data_offsets"},
      {R"({"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,2]}})", "unknown dtype \"Q4\""},
      {R"({"a":{"dtype":"BF16","dtype":"F32","shape":[1],"data_offsets":[0,2]}})",
       "may not hold \"F32\" in \"dtype\""},
      {R"({"a":{"dtype":"BF16","shape":[-1],"data_offsets":[0,2]}})", "may not hold -1"},
      {R"({"a":{"dtype":"BF16","shape":[1.0],"data_offsets":[0,2]}})", "may not hold 1.0"},
      {R"({"a":{"dtype":"BF16","shape":[[1]],"data_offsets":[0,2]}})", "may not hold a list"},
      {R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2],"x":1}})",
       "may not hold 1 in \"x\""},
      {R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0]}})", "are not [begin, end]"},
      {R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[2,0]}})", "are not [begin, end]"},
      {R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,2]}})",
       "BF16 [2] does not fit data_offsets [0, 2]"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
       "does not fit data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[0,18446744073709551615],"data_offsets":[0,0]}})",
       "does not fit data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "\"a\" is listed twice"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "\"b\": its bytes begin at 1, overlapping"},
      {R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "\"b\": its bytes begin at 1, leaving a gap"},
      {R"({"b":{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]}})", "truncated: \"b\""},
      {R"({"__metadata__":{"a":{}}})", "\"__metadata__\" may not hold an object"},
      {R"({"__metadata__":{"a":1}})", "\"__metadata__\" may not hold 1"},
  };
  for (const auto& [header, message] : cases) {
    EXPECT_THAT(Refusal(ShardBytes(header, "xy")), HasSubstr(message)) << header;
  }
  EXPECT_THAT(Refusal(ShardBytes("{\"\xff\":{}}", "")), HasSubstr("not valid JSON"));
  EXPECT_THAT(Refusal(ShardBytes(std::string(5'000'000, '['), "")), HasSubstr("not an object"));
}

TEST(SafetensorsTest, IndexMapsTensorsToPlainNames) {
  auto index = ParseSafetensorsIndex(
      R"({"metadata":{"total_size":3,"x":[{"weight_map":{"y":"/z"}}]},"weight_map":{"a":"m-1.safetensors"}})");
  EXPECT_EQ(index.value().at("a"), "m-1.safetensors");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"weight_map":{"a":"../m.safetensors"}})",
       "\"../m.safetensors\"; a shard must be the name"},
      {R"({"weight_map":{"a":"/etc/m.safetensors"}})", "a shard must be the name"},
      {R"({"weight_map":{"a":"m.bin"}})", "a shard must be the name"},
      {R"({"weight_map":{"a":""}})", "a shard must be the name"},
      {R"({"weight_map":{"a":"m.safetensors","a":"n.safetensors"}})", "\"a\" is listed twice"},
      {R"({"weight_map":{"a":{"b":"m.safetensors"}}})", "must map tensor names to file names"},
      {R"({"weight_map":{"a":["m.safetensors"]}})", "must map tensor names to file names"},
      {R"({"weight_map":{"a":1}})", "must map tensor names to file names"},
      {R"({"weight_map":{},"weight_map":{}})", "given twice"},
      {R"({"weight_map":{}})", "missing or empty"},
      {R"({"metadata":{}})", "missing or empty"},
      {R"([{"weight_map":{"a":"m.safetensors"}}])", "must map"},
      {"", "not valid JSON"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(Message(ParseSafetensorsIndex(text).status()), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace kt
