// SPDX-License-Identifier: Apache-2.0
#include "common/observe/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/base/exit_code.h"
#include "common/base/json.h"
#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(LogTest, TextLines) {
  ASSERT_TRUE(SetUpLog("kt-x", "warning", "text").ok());
  ::testing::internal::CaptureStderr();
  spdlog::info("not shown");
  spdlog::warn("shown");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), EndsWith("warning kt-x: shown\n"));
}

TEST(LogTest, JsonLinesStayOneLineEach) {
  ASSERT_TRUE(SetUpLog("kt-x", "info", "json").ok());
  ::testing::internal::CaptureStderr();
  spdlog::info("a \"b\"\n\xff");
  std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  absl::StatusOr<Json> line = ParseJson(text);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ((*line)["level"], "info");
  EXPECT_EQ((*line)["process"], "kt-x");
  EXPECT_THAT((*line)["message"].get<std::string>(), HasSubstr("a \"b\"\n"));
}

TEST(LogTest, UnknownWordsAreRefused) {
  EXPECT_THAT(Message(SetUpLog("kt-x", "loud", "text")), HasSubstr("loud"));
  EXPECT_THAT(Message(SetUpLog("kt-x", "info", "xml")), HasSubstr("xml"));
}

TEST(LogTest, LastSentenceGoesToTheNode) {
  ASSERT_TRUE(SetUpLog("kt-x", "info", "text").ok());
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  setenv("KT_ERROR_FD", std::to_string(fds[1]).c_str(), 1);
  EXPECT_EQ(FailProcess(InvalidArgument("config.json: hidden_size is missing")), kExitBadModel);
  EXPECT_EQ(FailProcess(ResourceExhausted("no memory")), kExitOutOfMemory);
  unsetenv("KT_ERROR_FD");
  char buffer[200];
  ssize_t count = read(fds[0], buffer, sizeof(buffer));
  EXPECT_EQ(std::string(buffer, static_cast<size_t>(count)),
            "config.json: hidden_size is missingno memory");
  close(fds[0]);
  close(fds[1]);
}

}  // namespace
}  // namespace kt
