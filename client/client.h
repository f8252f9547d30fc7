// SPDX-License-Identifier: Apache-2.0
// C++ client of the runtime's gRPC API (proto/generation.proto).
//
//   kt::client::Client client({.target = "unix:/run/kt/api.sock"});
//   kt::api::GenerateRequest request;
//   auto* message = request.mutable_chat()->add_messages();
//   message->set_role("user");
//   message->set_content("Hello!");
//   absl::Status status = client.Generate(request, [](const kt::api::GenerateEvent& event) {
//     std::cout << event.text() << std::flush;
//     return true;
//   });
#ifndef KT_CLIENT_CLIENT_H_
#define KT_CLIENT_CLIENT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/generation.pb.h"

namespace kt::client {

struct ClientOptions {
  std::string target;   // "unix:/path/api.sock" or "host:port"
  std::string api_key;  // empty: none is sent
  std::chrono::milliseconds connect_timeout{
      5000};  // of a call that finds no server; then Unavailable
};

// Ends a running Generate from another thread. Made once for each call.
class Cancellation {
 public:
  Cancellation();
  ~Cancellation();
  void Cancel();  // thread-safe; before, during or after the call

 private:
  friend class Client;
  struct State;
  std::unique_ptr<State> state_;
};

// Thread-safe: calls run side by side over one connection, which is made anew when it breaks.
class Client {
 public:
  explicit Client(const ClientOptions& options);
  ~Client();

  // Runs one request and hands its events to `on_event`, on the calling thread, until every choice
  // has a finish_reason. Returning false from it cancels the rest: Cancelled, as with
  // `cancellation`. Other errors are the server's, see docs/errors.md: InvalidArgument names field,
  // value and range; ResourceExhausted: its queue is full; Unavailable: it is starting, stopping or
  // gone.
  absl::Status Generate(const api::GenerateRequest& request,
                        const std::function<bool(const api::GenerateEvent&)>& on_event,
                        Cancellation* cancellation = nullptr);

  absl::StatusOr<api::ListModelsReply> ListModels();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kt::client

#endif  // KT_CLIENT_CLIENT_H_
