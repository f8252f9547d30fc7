// SPDX-License-Identifier: Apache-2.0
#include "node/listen_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

int PortOf(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

TEST(ListenSocketTest, FreePortAndThenBusyPort) {
  absl::StatusOr<ListenSocket> first = OpenListenSocket("127.0.0.1", 0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->address, StartsWith("127.0.0.1:"));
  int port = PortOf(first->address);
  EXPECT_GT(port, 0);
  absl::Status busy = OpenListenSocket("127.0.0.1", port).status();
  EXPECT_EQ(busy.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(busy), HasSubstr(fmt::format("port {} of 127.0.0.1 is in use", port)));
}

TEST(ListenSocketTest, NamesAndSecondProtocol) {
  absl::StatusOr<ListenSocket> name = OpenListenSocket("localhost", 0);
  EXPECT_TRUE(name.ok()) << name.status();
  absl::StatusOr<ListenSocket> v6 = OpenListenSocket("::1", 0);
  if (!v6.ok()) GTEST_SKIP() << "this machine has no IPv6: " << v6.status();
  EXPECT_THAT(v6->address, StartsWith("[::1]:"));
}

TEST(ListenSocketTest, ForeignAddressIsNamed) {
  EXPECT_THAT(Message(OpenListenSocket("192.0.2.1", 0).status()), HasSubstr("192.0.2.1"));
  EXPECT_THAT(Message(OpenListenSocket("no such host", 0).status()), HasSubstr("no such host"));
}

}  // namespace
}  // namespace kt
