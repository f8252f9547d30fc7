// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/python_json.h"

#include <gtest/gtest.h>

namespace kt {
namespace {

// Each text is what Python's json.dumps(json.loads(text), ensure_ascii=False) gives back.
TEST(PythonJsonTest, WritesWhatPythonWrites) {
  for (const char* text : {"null",
                           "true",
                           "false",
                           "0",
                           "-7",
                           "18446744073709551615",
                           "1.0",
                           "-0.0",
                           "0.1",
                           "199.5",
                           "0.0001",
                           "1e-05",
                           "1.5e-07",
                           "123456789.125",
                           "1000000000000000.0",
                           "1e+16",
                           "1.5e+300",
                           "5e-324",
                           R"("")",
                           R"("a\"\\/b\n\t\u0001\u001f é 漢 🙂 <>&'")",
                           "\"\x7f\"",
                           "[]",
                           "{}",
                           "[1, 2.5, [], {}]",
                           R"({"z": 1, "a": {"b": [null, "x"]}, "": ""})"}) {
    auto value = ParseJson(text);
    ASSERT_TRUE(value.ok()) << text;
    EXPECT_EQ(PythonJson(*value), text);
  }
}

TEST(PythonJsonTest, InvalidBytesBecomeReplacementCharacters) {
  EXPECT_EQ(PythonJson(Json("a\xFF")), "\"a\uFFFD\"");
}

}  // namespace
}  // namespace kt
