// SPDX-License-Identifier: Apache-2.0
#include "cli/status.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <utility>
#include <vector>

#include "cli/http_client.h"
#include "cli/runtime_dir.h"
#include "common/base/exit_code.h"
#include "common/base/status.h"
#include "common/ipc/node_client.h"

namespace kt::cli {
namespace {

constexpr int kHealthTimeoutMs = 3000;

// "127.0.0.1:30000", "[::1]:30000"; a server that listens everywhere is reached over loopback.
absl::StatusOr<HttpClientOptions> ServerAt(const std::string& address) {
  HttpClientOptions options;
  size_t colon = address.rfind(':');
  if (colon == std::string::npos) return InvalidArgument("address {}: has no port", address);
  options.host = address.substr(0, colon);
  if (options.host.size() > 2 && options.host.front() == '[')
    options.host = options.host.substr(1, options.host.size() - 2);
  if (options.host == "0.0.0.0") options.host = "127.0.0.1";
  if (options.host == "::") options.host = "::1";
  std::string port = address.substr(colon + 1);
  if (std::from_chars(port.data(), port.data() + port.size(), options.port).ec != std::errc()) {
    return InvalidArgument("address {}: has no port", address);
  }
  options.connect_timeout_ms = kHealthTimeoutMs;
  return options;
}

Json Health(const std::string& address) {
  absl::StatusOr<HttpClientOptions> server = ServerAt(address);
  if (!server.ok()) return Message(server.status());
  absl::StatusOr<HttpResponse> response =
      HttpClient(*server).Get("/health?verbose=1", kHealthTimeoutMs);
  if (!response.ok()) return Message(response.status());
  absl::StatusOr<Json> body = ParseJson(response->body);
  return body.ok() ? *body : Json(fmt::format("HTTP {}", response->status));
}

bool IsServing(const Json& status) { return status["node"].value("phase", "") == "serving"; }

}  // namespace

absl::StatusOr<Json> ReadRunStatus(const std::string& runtime_dir) {
  KT_ASSIGN_OR_RETURN(NodeClient client, NodeClient::Connect(runtime_dir + "/" + kNodeSocketName));
  KT_ASSIGN_OR_RETURN(std::string text, client.ProcessesJson());
  KT_ASSIGN_OR_RETURN(Json node, ParseJson(text));
  Json health = Health(node.value("address", ""));
  return Json{
      {"runtime_dir", runtime_dir}, {"node", std::move(node)}, {"health", std::move(health)}};
}

std::string RunStatusText(const Json& status) {
  const Json& node = status["node"];
  std::string text =
      fmt::format("{}  http://{}/v1  pid {}  {}\n", node.value("phase", ""),
                  node.value("address", ""), node.value("pid", 0), status.value("runtime_dir", ""));
  text += fmt::format("  {:<26} {:>8}  {:<9} {:>8}  {}\n", "process", "pid", "state", "restarts",
                      "last end");
  for (const Json& process : node["processes"]) {
    text += fmt::format("  {:<26} {:>8}  {:<9} {:>8}  {}\n", process.value("name", ""),
                        process.value("pid", 0), process.value("state", ""),
                        process.value("restarts", 0), process.value("last_exit", ""));
  }
  const Json& health = status["health"];
  text += fmt::format("  health: {}\n",
                      health.is_string() ? health.get<std::string>() : DumpJson(health));
  return text;
}

int StatusMain(const StatusOptions& options) {
  std::vector<std::string> dirs = options.runtime_dir.empty()
                                      ? FindRuntimeDirs()
                                      : std::vector<std::string>{options.runtime_dir};
  Json runs = Json::array();
  for (const std::string& dir : dirs) {
    absl::StatusOr<Json> status = ReadRunStatus(dir);
    if (status.ok()) {
      runs.push_back(*std::move(status));
    } else if (!options.runtime_dir.empty()) {
      fmt::print(stderr, "kt status: {}\n", Message(status.status()));
      return kExitFailure;
    }
  }
  bool all_serving = !runs.empty();
  for (const Json& run : runs) {
    all_serving = all_serving && IsServing(run);
    if (!options.json) fmt::print("{}", RunStatusText(run));
  }
  if (options.json) fmt::print("{}\n", DumpJson(runs, 2));
  if (runs.empty() && !options.json)
    fmt::print(stderr, "kt status: nothing of this user runs here\n");
  return all_serving ? kExitOk : kExitFailure;
}

}  // namespace kt::cli
