// SPDX-License-Identifier: Apache-2.0
#ifndef KT_NODE_NODE_H_
#define KT_NODE_NODE_H_

#include <string>

#include "node/spec.h"

namespace kt {

// Runs the processes of `spec` until the run is over and returns its exit code. `runtime_dir` holds
// the node's socket. Call from the main thread of a process without other threads.
int RunNode(const NodeSpec& spec, const std::string& runtime_dir);

}  // namespace kt

#endif  // KT_NODE_NODE_H_
