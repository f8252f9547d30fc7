// SPDX-License-Identifier: Apache-2.0
// What the two kinds of worker programs share: command line, log, signals, registration.
#ifndef KT_WORKER_WORKER_MAIN_H_
#define KT_WORKER_WORKER_MAIN_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/parallel.h"
#include "common/ipc/node_client.h"
#include "common/model/model_config.h"
#include "common/rpc/worker_session.h"
#include "kernels/cpu/features/cpu_features.h"
#include "proto/config.pb.h"

namespace kt {

// A worker that was constructed and serves until it is told to stop.
class Worker {
 public:
  virtual ~Worker() = default;
  // Loads everything; called once after registration. `progress(done, total)` in bytes.
  virtual absl::StatusOr<proto::WorkerFacts> Load(
      const std::function<void(uint64_t, uint64_t)>& progress) = 0;
  // Services for the worker's gRPC server, which starts after Load.
  virtual grpc::Service* service() = 0;
  // The server is about to end: calls that wait for other workers must fail now. After Load.
  virtual void Stop() {}
};

// The context a worker is built from.
struct WorkerContext {
  proto::RuntimeConfig config;
  int index = 0;
  uint64_t incarnation = 0;
  Isa isa = Isa::kScalar;
  // As NodeClient's GetSegment, PutSegment and OpenSegment; thread-safe.
  std::function<absl::StatusOr<Segment>(const std::string& name, size_t bytes)> segments;
  std::function<absl::Status(const std::string& name, const Segment& segment)> put_segment;
  std::function<absl::StatusOr<Segment>(const std::string& name)> open_segment;
};

// main() of a worker program: --config FILE --index N. Registers, builds, loads, serves until
// SIGTERM or until the coordinator has gone. Returns the exit code (docs/errors.md).
int WorkerMain(
    int argc, char** argv, proto::WorkerKind kind, const std::string& name,
    const std::function<absl::StatusOr<std::unique_ptr<Worker>>(const WorkerContext&)>& make);

}  // namespace kt

#endif  // KT_WORKER_WORKER_MAIN_H_
