// SPDX-License-Identifier: Apache-2.0
// What kt-node is told to do: runtime_dir/node.json. It lists processes without knowing what they
// are for.
#ifndef KT_NODE_SPEC_H_
#define KT_NODE_SPEC_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json.h"

namespace kt {

struct ProcessSpec {
  std::string name;                        // unique; letters, digits, '.', '_', '-'
  std::vector<std::string> argv;           // argv[0]: path of the program
  std::map<std::string, std::string> env;  // added to the node's own environment
  int stop_order = 0;               // lower numbers get SIGTERM first, the next when they are gone
  int64_t stop_timeout_ms = 10000;  // after SIGTERM, before SIGKILL
  bool critical = false;            // a restart storm of it ends the run instead of degrading it
  bool reports_ready = false;       // writes "READY\n" to the pipe KT_READY_FD when it serves
  bool inherits_listener = false;   // gets the listening socket as KT_HTTP_FD

  bool operator==(const ProcessSpec&) const = default;
};

struct RestartPolicy {
  int64_t backoff_first_ms = 100;  // doubles with every death
  int64_t backoff_max_ms = 10000;
  int64_t healthy_ms = 30000;  // a process that ran this long starts again at backoff_first_ms
  int restarts_max = 5;        // more within window_ms: a restart storm
  int64_t window_ms = 60000;

  bool operator==(const RestartPolicy&) const = default;
};

struct NodeSpec {
  std::string listen_host;  // empty: no listening socket
  int listen_port = 0;      // 0: any free port
  std::string ready_text;   // of the ready line; "{address}" stands for host:port
  int64_t started_ns = 0;   // CLOCK_MONOTONIC of the user's command, for the ready line
  std::string log_level = "info";
  std::string log_format = "text";
  RestartPolicy restarts;
  std::vector<ProcessSpec> processes;

  bool operator==(const NodeSpec&) const = default;
};

Json NodeSpecToJson(const NodeSpec& spec);
// InvalidArgument names the field.
absl::StatusOr<NodeSpec> NodeSpecFromJson(const Json& json);

// Names that are file names, log words and keys at once: 1 to 103 letters, digits, '.', '_', '-'.
bool IsPlainName(const std::string& name);

}  // namespace kt

#endif  // KT_NODE_SPEC_H_
