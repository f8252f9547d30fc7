// SPDX-License-Identifier: Apache-2.0
#include "node/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::HasSubstr;

NodeSpec FullSpec() {
  NodeSpec spec;
  spec.listen_host = "::1";
  spec.listen_port = 30000;
  spec.ready_text = "http://{address}/v1 model=m";
  spec.started_ns = 123456789;
  spec.log_level = "debug";
  spec.log_format = "json";
  spec.restarts = {1, 2, 3, 4, 5};
  ProcessSpec process{"kt-gpu-worker", {"/bin/w", "--index", "0"}, {{"A", "b"}}};
  process.stop_order = 1;
  process.stop_timeout_ms = 7;
  process.critical = process.reports_ready = process.inherits_listener = true;
  spec.processes = {process};
  return spec;
}

TEST(NodeSpecTest, SurvivesJson) {
  absl::StatusOr<NodeSpec> read = NodeSpecFromJson(NodeSpecToJson(FullSpec()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, FullSpec());
}

TEST(NodeSpecTest, BadFieldsAreNamed) {
  auto message_for = [](auto change) {
    Json json = NodeSpecToJson(FullSpec());
    change(json);
    return Message(NodeSpecFromJson(json).status());
  };
  EXPECT_THAT(message_for([](Json& j) { j["version"] = 2; }), HasSubstr("version is 2"));
  EXPECT_THAT(message_for([](Json& j) { j["listen_port"] = 65536; }), HasSubstr("listen_port"));
  EXPECT_THAT(message_for([](Json& j) { j["processes"] = Json::array(); }), HasSubstr("processes"));
  EXPECT_THAT(message_for([](Json& j) { j["processes"][0]["name"] = "a/b"; }), HasSubstr("a/b"));
  EXPECT_THAT(message_for([](Json& j) { j["processes"][0]["argv"] = Json::array(); }),
              HasSubstr("argv"));
  EXPECT_THAT(message_for([](Json& j) {
                j["processes"][0]["env"] = {{"A", 1}};
              }),
              HasSubstr("env.A"));
  EXPECT_THAT(message_for([](Json& j) { j["processes"].push_back(j["processes"][0]); }),
              HasSubstr("two processes"));
  EXPECT_THAT(message_for([](Json& j) { j["restarts"]["restarts_max"] = -1; }),
              HasSubstr("restarts_max"));
  EXPECT_THAT(message_for([](Json& j) { j = 3; }), HasSubstr("object"));
}

}  // namespace
}  // namespace kt
