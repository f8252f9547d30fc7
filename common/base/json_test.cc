// SPDX-License-Identifier: Apache-2.0
#include "common/base/json.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace kt {
namespace {

TEST(JsonTest, DeepNestingIsRefusedWithTheByte) {
  auto json = ParseJson(std::string(100000, '['));
  ASSERT_FALSE(json.ok());
  EXPECT_NE(Message(json.status()).find("deeper than 64 levels at byte 64"), std::string::npos);
}

TEST(JsonTest, InvalidUtf8IsRefused) { EXPECT_FALSE(ParseJson("\"\xff\"").ok()); }

TEST(JsonTest, TypedReadsNameFieldValueAndRange) {
  Json json =
      ParseJson(R"({"a": 7, "b": "x", "c": null, "d": 2.0, "e": 1e400, "f": 18446744073709551615})")
          .value_or(Json());
  EXPECT_FALSE(ParseJson(R"({"e": 1e400})").ok());
  json = ParseJson(R"({"a": 7, "b": "x", "c": null, "d": 2.0, "f": 18446744073709551615})").value();
  EXPECT_EQ(JsonInt(json, "a", "t").value(), 7);
  EXPECT_EQ(JsonInt(json, "c", "t").value(), std::nullopt);
  EXPECT_EQ(JsonInt(json, "d", "t").value(), 2);
  EXPECT_FALSE(JsonInt(json, "f", "t").ok());
  EXPECT_EQ(Message(JsonInt(json, "a", "t", 0, 5).status()), "t: a must be between 0 and 5, got 7");
  EXPECT_EQ(Message(JsonInt(json, "b", "t").status()), "t: b must be an integer, got string \"x\"");
}

}  // namespace
}  // namespace kt
