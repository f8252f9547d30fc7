// SPDX-License-Identifier: Apache-2.0
// Protocol and hostile clients, over real sockets.
#include "coordinator/http/http_server.h"

#include "coordinator/http/test_server.h"

namespace kt::http {
namespace {

using ::testing::HasSubstr;

constexpr char kChat[] = "/v1/chat/completions";
const std::string kLongStream =
    R"({"messages":[{"role":"user","content":"hello"}],"max_tokens":90000,"stream":true})";
const std::string kLongWhole =
    R"({"messages":[{"role":"user","content":"hello"}],"max_tokens":90000})";

TEST_F(HttpTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  RawClient client(port_);
  std::string all;
  for (int i = 0; i < 200; ++i) {
    const std::string body =
        fmt::format(R"({{"prompt":"{}"}})", std::string(static_cast<size_t>(1 + i % 7), 'x'));
    all += fmt::format(
        "POST /tokenize HTTP/1.1\r\nhost: x\r\nx-request-id: r{}\r\ncontent-length: "
        "{}\r\n\r\n{}GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
        i, body.size(), body);
  }
  ASSERT_TRUE(client.Send(all));
  for (int i = 0; i < 200; ++i) {
    RawResponse response = client.Read();
    ASSERT_EQ(response.status, 200);
    EXPECT_EQ(response.Header("x-request-id"), fmt::format("r{}", i));
    EXPECT_THAT(response.body, HasSubstr(fmt::format("\"count\":{}", 1 + i % 7)));
    EXPECT_EQ(client.Read().status, 200);
  }
}

TEST_F(HttpTest, RequestsMayArriveByteByByte) {
  Start();
  RawClient client(port_);
  for (char c : std::string(
           "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n{\"prompt\":\"a\"}"))
    client.Send(std::string(1, c));
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpTest, ChunkedBodiesAndExpectContinueWork) {
  Start();
  RawClient client(port_);
  client.Send(
      "POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: "
      "chunked\r\n\r\n5\r\n{\"pro\r\n9\r\nmpt\":\"a\"}\r\n0\r\n\r\n");
  EXPECT_THAT(client.Read().body, HasSubstr("[97]"));
  client.Send(
      "POST /tokenize HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 14\r\n\r\n");
  ASSERT_TRUE(client.ReadUntil("HTTP/1.1 100 Continue\r\n\r\n"));
  client.Send("{\"prompt\":\"b\"}");
  EXPECT_THAT(client.Read().body, HasSubstr("[98]"));
}

TEST_F(HttpTest, HeadOptionsAndUnknownPathsAndMethods) {
  Start();
  RawClient client(port_);
  client.Send("HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n");
  RawResponse head = client.Read(/*has_body=*/false);
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.Header("content-length"), "0");
  client.Send("OPTIONS /v1/models HTTP/1.1\r\nhost: x\r\n\r\n");
  RawResponse options = client.Read();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.Header("allow"), "GET, HEAD, OPTIONS");
  client.Get("/v1/completions");
  RawResponse wrong_method = client.Read();
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(wrong_method.Header("allow"), "POST, OPTIONS");
  EXPECT_THAT(wrong_method.body, HasSubstr("\"code\":\"method_not_allowed\""));
  client.Get("/v1/nothing");
  EXPECT_THAT(client.Read().body, HasSubstr("\"code\":\"path_not_found\""));
  client.Get("/generate");
  EXPECT_EQ(client.Read().status, 404);  // all of it on one connection
}

TEST_F(HttpTest, Http10ClosesAndStreamsWithoutChunks) {
  Start();
  RawClient client(port_);
  client.Send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.Read().Header("connection"), "close");
  EXPECT_TRUE(client.AtEnd());
  RawClient stream(port_);
  const std::string body = R"({"prompt":"abc","max_tokens":3,"stream":true})";
  stream.Send(fmt::format("POST /v1/completions HTTP/1.0\r\ncontent-length: {}\r\n\r\n{}",
                          body.size(), body));
  RawResponse response = stream.Read();
  EXPECT_EQ(response.Header("transfer-encoding"), "");
  EXPECT_THAT(response.body, HasSubstr("data: [DONE]\n\n"));
}

TEST_F(HttpTest, MalformedRequestsGet400AndTheConnectionEnds) {
  Start();
  for (const char* bytes :
       {"\r\n\r\n\r\n\r\nnonsense\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "GET /health HTTP/1.1\r\nbad header\r\n\r\n", "GET /health HTTP/1.1\r\n\r\n",
        "GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: "
        "chunked\r\n\r\n0\r\n\r\n",
        "POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n\r\n"}) {
    RawClient client(port_);
    client.Send(bytes);
    RawResponse response = client.Read();
    EXPECT_EQ(response.status, 400) << bytes;
    EXPECT_THAT(response.body, HasSubstr("\"code\":\"invalid_http\"")) << bytes;
  }
  EXPECT_EQ(GetOnce(port_, "/health").status, 200);
}

TEST_F(HttpTest, SlowLorisIsCutOff) {
  options_.header_timeout_ms = 100;
  options_.body_timeout_ms = 150;
  options_.idle_timeout_ms = 200;
  Start();
  RawClient silent(port_), header(port_), body(port_), idle(port_);
  header.Send("GET /health HTTP/1.1\r\nhost: ");
  body.Send("POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{");
  idle.Get("/health");
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_EQ(header.Read().status, 408);
  RawResponse late = body.Read();
  EXPECT_EQ(late.status, 408);
  EXPECT_THAT(late.body, HasSubstr("\"code\":\"request_timeout\""));
  EXPECT_TRUE(silent.AtEnd());
  EXPECT_TRUE(idle.AtEnd());
}

TEST_F(HttpTest, AClientThatDripsItsHeaderIsCutOffToo) {
  options_.header_timeout_ms = 200;
  Start();
  RawClient client(port_);
  bool open = client.Send("GET /health HTTP/1.1\r\n");
  for (int i = 0; i < 500 && open && !client.Poll(); ++i) {
    open = client.Send("x-a: b\r\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(client.Read().status, 408);
}

TEST_F(HttpTest, HugeBodiesAndHeadersAreRefusedWithoutBeingRead) {
  options_.body_bytes_max = 1000;
  Start();
  RawClient declared(port_);
  declared.Send(
      "POST /tokenize HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: "
      "100000000\r\n\r\n");
  ASSERT_TRUE(declared.ReadUntil("\r\n\r\n"));
  EXPECT_THAT(declared.buffer(), HasSubstr("HTTP/1.1 413"));
  // One that sends it all the same still sees the answer.
  RawResponse sent = PostOnce(port_, "/tokenize", std::string(8 << 20, 'x'));
  EXPECT_EQ(sent.status, 413);
  EXPECT_THAT(sent.body, HasSubstr("more than the 1000 bytes allowed"));
  RawClient chunked(port_);
  chunked.Send("POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n7d0\r\n" +
               std::string(2000, 'x') + "\r\n");
  EXPECT_EQ(chunked.Read().status, 413);
  EXPECT_EQ(GetOnce(port_, "/health", "x-large: " + std::string(40000, 'x') + "\r\n").status, 431);
}

TEST_F(HttpTest, AllBodiesTogetherAreBounded) {
  options_.all_bodies_bytes_max = 1 << 20;
  Start();
  const std::string part =
      "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000\r\n\r\n" +
      std::string(700000, 'x');
  RawClient first(port_), second(port_);
  first.Send(part);
  second.Send(part);
  RawClient* refused = nullptr;
  for (int i = 0; i < 1000 && refused == nullptr; ++i) {  // whichever came second
    for (RawClient* client : {&first, &second}) {
      if (client->Poll()) refused = client;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->Read().status, 503);
  first.Close();
  second.Close();
  ExpectMetric("kt:http_connections", "0");
  EXPECT_EQ(PostOnce(port_, "/tokenize", R"({"prompt":"a"})").status, 200);
}

TEST_F(HttpTest, TooManyConnectionsAreToldSo) {
  options_.connections_max = 2;
  Start();
  RawClient a(port_), b(port_);
  a.Get("/health");
  b.Get("/health");
  EXPECT_EQ(a.Read().status, 200);
  EXPECT_EQ(b.Read().status, 200);
  RawResponse refused = GetOnce(port_, "/health");
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.Header("retry-after"), "");
  a.Close();
  ExpectMetric("kt:http_connections", "1");
  EXPECT_EQ(GetOnce(port_, "/health").status, 200);
}

// In every phase: queued, then running; closed or reset; streaming or not.
TEST_F(HttpTest, AClientThatGoesAwayEndsItsWork) {
  Start({.step = std::chrono::microseconds(200)});
  int cancelled = 0;
  for (const std::string& body : {kLongStream, kLongWhole}) {
    for (bool hold : {true, false}) {
      for (bool reset : {true, false}) {
        generator_->Hold(hold);
        RawClient client(port_);
        client.Post(kChat, body);
        ASSERT_TRUE(generator_->WaitFor(1, cancelled));
        if (!hold && body == kLongStream) {
          ASSERT_TRUE(client.ReadUntil("data: "));
        }
        if (reset)
          client.Reset();
        else
          client.Close();
        EXPECT_TRUE(generator_->WaitFor(0, ++cancelled)) << body << hold << reset;
      }
    }
  }
  ExpectMetric("kt:client_disconnects_total", "8");
  ExpectMetric("kt:http_connections", "0");
  ExpectMetric("kt:num_live_reqs", "0");
}

TEST_F(HttpTest, AHalfClosedClientStillGetsItsAnswer) {
  Start({.step = std::chrono::milliseconds(5)});
  for (bool stream : {false, true}) {
    RawClient client(port_);
    client.Post("/v1/completions",
                fmt::format(R"({{"prompt":"abc","max_tokens":20,"stream":{}}})", stream));
    client.HalfClose();
    RawResponse response = client.Read();
    EXPECT_EQ(response.status, 200);
    EXPECT_THAT(response.body, HasSubstr("\"finish_reason\":\"length\""));
    EXPECT_TRUE(client.AtEnd());
  }
  EXPECT_EQ(generator_->cancelled(), 0);
}

TEST_F(HttpTest, AHalfClosedClientThatThenClosesEndsItsWork) {
  Start();
  generator_->Hold(true);
  RawClient client(port_);
  client.Post(kChat, kLongWhole);
  client.HalfClose();
  ASSERT_TRUE(client.ReadUntil("100 Continue"));
  ASSERT_TRUE(generator_->WaitFor(1, 0));
  client.Close();
  EXPECT_TRUE(generator_->WaitFor(0, 1));
}

TEST_F(HttpTest, AResetIsSeenBehindAFullPipeline) {
  Start();
  generator_->Hold(true);
  RawClient client(port_);
  client.Post(kChat, kLongWhole);
  ASSERT_TRUE(generator_->WaitFor(1, 0));
  client.Send(std::string(200000, 'x'));  // more than is read ahead
  client.Reset();
  EXPECT_TRUE(generator_->WaitFor(0, 1));
}

TEST_F(HttpTest, TwoHundredDisconnectsReturnToTheBaselineAndOthersFinish) {
  Start({.step = std::chrono::microseconds(100)});
  RawClient other(port_);
  other.Post("/v1/completions", R"({"prompt":"0123456789","max_tokens":2000})");
  for (int i = 0; i < 200; ++i) {
    RawClient client(port_);
    client.Post(kChat, i % 2 == 0 ? kLongStream : kLongWhole);
    if (i % 4 == 0) client.ReadUntil("data: ");
    if (i % 3 == 0) client.Reset();
  }
  RawResponse response = other.Read();
  std::string text;
  for (int i = 0; i < 200; ++i) text += "0123456789";
  EXPECT_THAT(response.body, HasSubstr("\"text\":\"" + text + "\""));
  other.Close();
  ExpectMetric("kt:http_connections", "0");
  ExpectMetric("kt:num_live_reqs", "0");
  EXPECT_EQ(generator_->live(), 0);
}

TEST_F(HttpTest, ASlowReaderIsEndedAndNobodyWaitsForIt) {
  options_.stream_buffer_bytes_max = 64 << 10;
  Start({.step = std::chrono::microseconds(50)});
  RawClient slow(port_, /*receive_buffer=*/4096);
  slow.Post(
      kChat,
      R"({"messages":[{"role":"user","content":"hello"}],"max_tokens":90000,"stream":true,"logprobs":true,"top_logprobs":20})");
  EXPECT_TRUE(generator_->WaitFor(1, 0));
  EXPECT_TRUE(generator_->WaitFor(0, 1));  // cancelled, though the client never closed
  ExpectMetric("kt:client_disconnects_total", "1");
  EXPECT_EQ(PostOnce(port_, "/v1/completions", R"({"prompt":"a"})").status, 200);
}

TEST_F(HttpTest, DrainFinishesWhatRunsAndClosesTheRest) {
  Start({.step = std::chrono::milliseconds(2)});
  RawClient idle(port_), running(port_);
  idle.Get("/health");
  EXPECT_EQ(idle.Read().status, 200);
  running.Post("/v1/completions", R"({"prompt":"abc","max_tokens":50})");
  ASSERT_TRUE(generator_->WaitFor(1, 0));
  std::thread drain([&] { EXPECT_TRUE(server_->Drain(std::chrono::seconds(10))); });
  EXPECT_TRUE(idle.AtEnd());
  RawResponse response = running.Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_THAT(response.body, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_TRUE(running.AtEnd());
  running.Close();
  drain.join();
}

TEST_F(HttpTest, DrainGivesUpAtItsDeadlineAndTheDestructorCancels) {
  Start();
  generator_->Hold(true);
  RawClient client(port_);
  client.Post(kChat, kLongStream);
  ASSERT_TRUE(generator_->WaitFor(1, 0));
  EXPECT_FALSE(server_->Drain(std::chrono::milliseconds(50)));
  server_.reset();
  EXPECT_TRUE(generator_->WaitFor(0, 1));
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(HttpTest, ABusyPortAndABadHostAreNamed) {
  Start();
  HttpServerOptions options;
  options.port = port_;
  absl::Status busy = HttpServer::Start(options, router_.get(), &metrics_).status();
  EXPECT_TRUE(absl::IsAlreadyExists(busy));
  EXPECT_THAT(Message(busy), HasSubstr(fmt::format("port {} of 127.0.0.1 is in use", port_)));
  options.host = "no such host";
  EXPECT_THAT(Message(HttpServer::Start(options, router_.get(), &metrics_).status()),
              HasSubstr("host no such host:"));
}

TEST_F(HttpTest, AnInheritedSocketIsServed) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 16), 0);
  options_.listen_fd = fd;
  Start();
  EXPECT_EQ(GetOnce(port_, "/health").status, 200);
}

}  // namespace
}  // namespace kt::http
