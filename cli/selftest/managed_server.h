// SPDX-License-Identifier: Apache-2.0
// A whole system started for one command and stopped after it.
#ifndef KT_CLI_SELFTEST_MANAGED_SERVER_H_
#define KT_CLI_SELFTEST_MANAGED_SERVER_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"

namespace kt::cli {

// One thread. Everything that was started ends with the object, and with this process.
class ManagedServer {
 public:
  // Starts all processes as `kt run` would with this configuration, on a free port, and waits until
  // they serve. Their log goes to stderr when `show_log`; else its last lines are in the message of
  // a failure. `exit_code` is the node's where it ended early.
  static absl::StatusOr<std::unique_ptr<ManagedServer>> Start(proto::RuntimeConfig config,
                                                              bool show_log, int* exit_code);
  ~ManagedServer();

  std::string coordinator_address() const { return "unix:" + runtime_dir_ + "/coordinator.sock"; }
  std::string api_address() const { return "unix:" + runtime_dir_ + "/api.sock"; }

 private:
  ManagedServer() = default;
  // Reads the node's stderr until the ready line; the rest is read by a thread so that nobody
  // blocks on a full pipe.
  bool WaitReady(int fd, bool show_log, std::string* last_lines);

  pid_t pid_ = -1;
  std::string runtime_dir_;
  std::thread log_reader_;
};

}  // namespace kt::cli

#endif  // KT_CLI_SELFTEST_MANAGED_SERVER_H_
