// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/openai_error.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "coordinator/api/api_error.h"

namespace kt::http {
namespace {

TEST(OpenAiErrorTest, TheBodyHasOpenAisShape) {
  EXPECT_EQ(
      ErrorBody(api::FieldError("n", "must be small, got {}", 9)),
      R"({"error":{"message":"n must be small, got 9","type":"invalid_request_error","param":"n","code":"invalid_value"}})");
  EXPECT_EQ(
      ErrorBody(Unavailable("later")),
      R"({"error":{"message":"later","type":"server_error","param":null,"code":"unavailable"}})");
  EXPECT_NE(ErrorBody(InvalidArgument("bad \xff")).find("bad \xEF\xBF\xBD"), std::string::npos);
}

TEST(OpenAiErrorTest, ACodeSelectsItsRowAndEveryStatusHasOne) {
  EXPECT_EQ(FindErrorRow(api::WithCode(InvalidArgument("x"), api::kBodyTooLarge)).http_status, 413);
  EXPECT_EQ(FindErrorRow(InvalidArgument("x")).http_status, 400);
  EXPECT_EQ(FindErrorRow(ResourceExhausted("x")).http_status, 429);
  EXPECT_GT(FindErrorRow(ResourceExhausted("x")).retry_after_s, 0);
  for (int code = 1; code <= 16; ++code) {
    EXPECT_GE(FindErrorRow(absl::Status(static_cast<absl::StatusCode>(code), "x")).http_status, 400)
        << code;
  }
}

TEST(OpenAiErrorTest, CodesAreUniqueAndDocumented) {
  std::ifstream file(KT_SOURCE_DIR "/docs/errors.md");
  std::stringstream docs;
  docs << file.rdbuf();
  std::set<std::string> codes;
  for (const ErrorRow& row : ErrorTable()) {
    EXPECT_TRUE(codes.insert(row.code).second) << row.code;
    const std::string line = fmt::format("| `{}` | {} | {} |", row.code, row.http_status,
                                         absl::StatusCodeToString(row.status));
    EXPECT_NE(docs.str().find(line), std::string::npos) << "docs/errors.md lacks: " << line;
  }
}

}  // namespace
}  // namespace kt::http
