// SPDX-License-Identifier: Apache-2.0
#include "cli/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <vector>

#include "cli/fake_http_server.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

HttpClient ClientOf(const FakeHttpServer& server, const std::string& key = "") {
  return HttpClient({.host = "127.0.0.1", .port = server.port(), .api_key = key});
}

TEST(HttpClientTest, GetReturnsStatusTypeAndBody) {
  std::string request;
  FakeHttpServer server([&](const FakeConnection& c) {
    request = c.request();
    c.SendJson(404, R"({"a":1})");
  });
  const auto response = ClientOf(server, "sk-1").Get("/v1/models");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 404);
  EXPECT_EQ(response->content_type, "application/json");
  EXPECT_EQ(response->body, R"({"a":1})");
  EXPECT_THAT(request, HasSubstr("GET /v1/models HTTP/1.1\r\n"));
  EXPECT_THAT(request, HasSubstr("Authorization: Bearer sk-1\r\n"));
}

TEST(HttpClientTest, PostSendsTheBodyAndReadsChunksHoweverTheyAreCut) {
  const std::string answer =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
  std::string body;
  FakeHttpServer server([&](const FakeConnection& c) {
    body = c.body();
    for (const char byte : answer) c.Send(std::string_view(&byte, 1));
  });
  const auto response = ClientOf(server).Post("/x", R"({"q":"é"})");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->body, "hello world");
  EXPECT_EQ(body, R"({"q":"é"})");
}

TEST(HttpClientTest, StreamingHandsOutPiecesAndStopsWhenTold) {
  bool closed = false;
  {
    FakeHttpServer server([&](const FakeConnection& c) {
      c.StartEvents();
      c.SendEvent("1");
      closed = c.ClientCloses();
    });
    std::string seen;
    const auto response = ClientOf(server).PostStreaming("/x", "{}", [&](std::string_view data) {
      seen += data;
      return !seen.ends_with("\n\n");
    });
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(seen, "data: 1\n\n");
  }
  EXPECT_TRUE(closed);
}

TEST(HttpClientTest, AnErrorAnswerToAStreamIsReturnedWhole) {
  FakeHttpServer server([](const FakeConnection& c) { c.SendJson(400, "no"); });
  const auto response = ClientOf(server).PostStreaming("/x", "{}", [](std::string_view) {
    ADD_FAILURE() << "an error is no stream";
    return true;
  });
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 400);
  EXPECT_EQ(response->body, "no");
}

TEST(HttpClientTest, NamesWhatWentWrong) {
  FakeHttpServer garbage([](const FakeConnection& c) { c.Send("SSH-2.0-OpenSSH\r\n\r\n"); });
  EXPECT_EQ(ClientOf(garbage).Get("/").status().code(), absl::StatusCode::kDataLoss);
  FakeHttpServer cut(
      [](const FakeConnection& c) { c.Send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"); });
  EXPECT_THAT(Message(ClientOf(cut).Get("/").status()),
              HasSubstr("before the answer was complete"));
  FakeHttpServer silent([](const FakeConnection& c) { c.ClientCloses(); });
  EXPECT_EQ(ClientOf(silent).Get("/", 50).status().code(), absl::StatusCode::kDeadlineExceeded);
  int port = 0;
  {
    port = FakeHttpServer([](const FakeConnection&) {}).port();
  }
  EXPECT_THAT(Message(HttpClient({.host = "127.0.0.1", .port = port}).Get("/").status()),
              HasSubstr("Connection refused"));
  EXPECT_EQ(HttpClient({.host = "127.0.0.1", .port = port, .api_key = "a\r\nX: y"})
                .Get("/")
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(HttpClientTest, AnInterruptEndsTheRequest) {
  const UniqueFd interrupt(eventfd(0, EFD_CLOEXEC));
  bool closed = false;
  {
    FakeHttpServer server([&](const FakeConnection& c) {
      eventfd_write(interrupt.get(), 1);
      closed = c.ClientCloses();
    });
    HttpClient client(
        {.host = "127.0.0.1", .port = server.port(), .interrupt_fd = interrupt.get()});
    EXPECT_EQ(client.Post("/x", "{}").status().code(), absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(closed);
}

TEST(SseParserTest, CutsEventsHoweverTheBytesArrive) {
  const std::string stream =
      ": comment\r\n\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: lines\n\ndata:\n\ndata: "
      "unfinished";
  for (size_t step : {size_t{1}, size_t{7}, stream.size()}) {
    SseParser parser;
    std::vector<std::string> events;
    for (size_t i = 0; i < stream.size(); i += step) {
      ASSERT_TRUE(parser
                      .Feed(std::string_view(stream).substr(i, step),
                            [&](const std::string& data) { events.push_back(data); })
                      .ok());
    }
    EXPECT_THAT(events, ElementsAre("one", "two\nlines", ""));
  }
}

TEST(SseParserTest, BoundsAnEvent) {
  SseParser parser;
  const std::string flood(size_t{17} << 20, 'x');
  EXPECT_EQ(parser.Feed(flood, [](const std::string&) {}).code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace kt::cli
