// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/http_server.h"

#include <netdb.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <future>
#include <thread>

#include "common/base/status.h"
#include "coordinator/api/api_error.h"
#include "coordinator/http/session.h"

namespace kt::http {
namespace {

namespace net = boost::asio;
using tcp = net::ip::tcp;

constexpr int kRefusedConnectionsMax =
    64;                           // above connections_max: told why; beyond these just closed
constexpr int kSpareFiles = 256;  // open files besides connections
constexpr std::chrono::milliseconds kAcceptRetry(100);

void RaiseOpenFilesLimit(int connections_max) {
  const rlim_t wanted = static_cast<rlim_t>(connections_max) + kRefusedConnectionsMax + kSpareFiles;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);  // refused: accept() waits for free descriptors instead
}

absl::StatusOr<int> Listen(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0)
    return InvalidArgument("host {}: {}; give an address of this machine", host,
                           gai_strerror(error));
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(list, &freeaddrinfo);
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ResourceExhausted("socket: {}", std::strerror(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, list->ai_addr, list->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int bind_error = errno;
  close(fd);
  if (bind_error == EADDRINUSE)
    return AlreadyExists("port {} of {} is in use; choose another with --port", port, host);
  return InvalidArgument("port {} of {}: {}", port, host, std::strerror(bind_error));
}

}  // namespace

struct HttpServer::Impl {
  void Accept();
  void OnAccept(boost::system::error_code error, tcp::socket socket);

  std::shared_ptr<net::io_context> io = std::make_shared<net::io_context>(1);
  SessionContext context;
  tcp::acceptor acceptor{*io};
  net::steady_timer accept_retry{*io};
  int port = 0;
  std::promise<void> last_closed;
  std::thread thread;
};

void HttpServer::Impl::Accept() {
  acceptor.async_accept([this](boost::system::error_code error, tcp::socket socket) {
    OnAccept(error, std::move(socket));
  });
}

void HttpServer::Impl::OnAccept(boost::system::error_code error, tcp::socket socket) {
  if (!acceptor.is_open()) return;
  if (error) {  // out of descriptors, or the client is gone already
    accept_retry.expires_after(kAcceptRetry);
    accept_retry.async_wait([this](boost::system::error_code cancelled) {
      if (!cancelled) Accept();
    });
    return;
  }
  const auto open = static_cast<int>(context.sessions.size());
  if (open < context.options.connections_max + kRefusedConnectionsMax) {
    auto session = std::make_shared<Session>(&context, std::move(socket));
    context.sessions.insert(session);
    if (open < context.options.connections_max) {
      session->Start();
    } else {
      session->Refuse(api::WithCode(Unavailable("all {} connections are in use; try again later",
                                                context.options.connections_max),
                                    api::kOverloaded));
    }
  }
  Accept();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              HttpHandler* handler,
                                                              metrics::Metrics* metrics) {
  int fd = options.listen_fd;
  if (fd < 0) {
    KT_ASSIGN_OR_RETURN(fd, Listen(options.host, options.port));
  }
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      (address.ss_family != AF_INET && address.ss_family != AF_INET6)) {
    return InvalidArgument("listening socket: descriptor {} is no TCP socket", fd);
  }
  RaiseOpenFilesLimit(options.connections_max);

  auto impl = std::make_unique<Impl>();
  boost::system::error_code error;
  impl->acceptor.assign(address.ss_family == AF_INET ? tcp::v4() : tcp::v6(), fd, error);
  if (!error) impl->port = impl->acceptor.local_endpoint(error).port();
  if (error) return Internal("listening socket: {}", error.message());
  impl->context.options = options;
  impl->context.handler = handler;
  impl->context.metrics = metrics;
  impl->context.io = impl->io;
  impl->context.on_last_closed = [impl = impl.get()] { impl->last_closed.set_value(); };
  impl->Accept();
  impl->thread = std::thread([io = impl->io] {
    pthread_setname_np(pthread_self(), "http-io");
    auto work = net::make_work_guard(*io);
    io->run();
  });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->port; }

bool HttpServer::Drain(std::chrono::milliseconds timeout) {
  auto last_closed = impl_->last_closed.get_future();
  net::post(*impl_->io, [impl = impl_.get()] {
    boost::system::error_code ignored;
    impl->acceptor.close(ignored);
    impl->accept_retry.cancel();
    impl->context.draining = true;
    if (impl->context.sessions.empty()) return impl->last_closed.set_value();
    const auto sessions = impl->context.sessions;  // Drain() may take one out of the set
    for (const auto& session : sessions) session->Drain();
  });
  return last_closed.wait_for(timeout) == std::future_status::ready;
}

HttpServer::~HttpServer() {
  net::post(*impl_->io, [impl = impl_.get()] {
    boost::system::error_code ignored;
    impl->acceptor.close(ignored);
    impl->context.draining = false;
    const auto sessions = impl->context.sessions;
    for (const auto& session : sessions) session->Close();
    impl->io->stop();
  });
  impl_->thread.join();
}

}  // namespace kt::http
