// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/runtime_config.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <fstream>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RuntimeConfigTest : public ::testing::Test {
 protected:
  RuntimeConfigTest() {
    config_.mutable_server()->set_api_key("secret");
    config_.mutable_server()->set_body_bytes_max(int64_t{1} << 40);
    config_.mutable_scheduler()->set_random_seed(UINT64_MAX);
    config_.mutable_experts()->add_warnings("\"quoted\" and é");
  }
  std::string Write(const std::string& text) {
    std::string path = ::testing::TempDir() + "runtime_config_test.json";
    std::ofstream(path) << text;
    return path;
  }
  proto::RuntimeConfig config_;
};

TEST_F(RuntimeConfigTest, SurvivesTheFile) {
  absl::StatusOr<proto::RuntimeConfig> read =
      ReadRuntimeConfig(Write(RuntimeConfigToJson(config_, true)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*read, config_));
}

TEST_F(RuntimeConfigTest, HidesTheKeyAndShowsDefaults) {
  std::string json = RuntimeConfigToJson(config_, false);
  EXPECT_THAT(json, Not(HasSubstr("secret")));
  EXPECT_THAT(json, HasSubstr("\"api_key\": \"***\""));
  EXPECT_THAT(json, HasSubstr("\"enable_mixed_chunk\": false"));
}

TEST_F(RuntimeConfigTest, BadFilesAreNamed) {
  EXPECT_THAT(Message(ReadRuntimeConfig("/nonexistent").status()), HasSubstr("/nonexistent"));
  EXPECT_THAT(Message(ReadRuntimeConfig(Write("{")).status()),
              HasSubstr("runtime_config_test.json"));
  EXPECT_FALSE(ReadRuntimeConfig(Write("{\"no_such_field\": 1}")).ok());
}

}  // namespace
}  // namespace kt
