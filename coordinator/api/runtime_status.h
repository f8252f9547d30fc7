// SPDX-License-Identifier: Apache-2.0
// What the front ends need to know of the runtime's state; implemented by the coordinator.
#ifndef KT_COORDINATOR_API_RUNTIME_STATUS_H_
#define KT_COORDINATOR_API_RUNTIME_STATUS_H_

#include "common/base/json.h"

namespace kt::api {

// Thread-safe. Called on I/O threads: must return at once.
class RuntimeStatus {
 public:
  virtual ~RuntimeStatus() = default;
  // False while starting, draining or failed: new requests are refused with 503.
  virtual bool Ready() const = 0;
  // {"state": "starting|ready|degraded|draining|failed", "progress": 0..1, "reasons": [text],
  // "warnings": [text], ...}
  virtual Json Health() const = 0;
  virtual Json ModelInfo() const = 0;   // GET /model_info
  virtual Json ServerInfo() const = 0;  // GET /server_info; without secrets
};

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_RUNTIME_STATUS_H_
