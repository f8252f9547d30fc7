// SPDX-License-Identifier: Apache-2.0
#include "node/spec.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/status.h"
#include "common/ipc/node_protocol.h"

namespace kt {
namespace {

constexpr int kVersion = 1;
constexpr int64_t kDurationMaxMs = int64_t{24} * 3600 * 1000;

template <typename T, typename Read>
absl::Status Assign(absl::StatusOr<std::optional<Read>> read, T& target) {
  if (!read.ok()) return read.status();
  if (read->has_value()) target = static_cast<T>(std::move(**read));
  return absl::OkStatus();
}

absl::StatusOr<ProcessSpec> ProcessFromJson(const Json& json, const std::string& where) {
  ProcessSpec process;
  KT_RETURN_IF_ERROR(Assign(JsonString(json, "name", where), process.name));
  KT_RETURN_IF_ERROR(Assign(JsonStrings(json, "argv", where), process.argv));
  KT_RETURN_IF_ERROR(Assign(JsonInt(json, "stop_order", where, 0, 100), process.stop_order));
  KT_RETURN_IF_ERROR(
      Assign(JsonInt(json, "stop_timeout_ms", where, 0, kDurationMaxMs), process.stop_timeout_ms));
  KT_RETURN_IF_ERROR(Assign(JsonBool(json, "critical", where), process.critical));
  KT_RETURN_IF_ERROR(Assign(JsonBool(json, "reports_ready", where), process.reports_ready));
  KT_RETURN_IF_ERROR(Assign(JsonBool(json, "inherits_listener", where), process.inherits_listener));
  if (auto env = json.find("env"); env != json.end()) {
    if (!env->is_object()) return InvalidArgument("{}.env: must be an object of strings", where);
    for (const auto& [key, value] : env->items()) {
      if (!value.is_string()) return InvalidArgument("{}.env.{}: must be a string", where, key);
      process.env[key] = value.get<std::string>();
    }
  }
  if (!IsPlainName(process.name))
    return InvalidArgument("{}.name: {} is not a plain name", where, process.name);
  if (process.argv.empty()) return InvalidArgument("{}.argv: is missing or empty", where);
  return process;
}

absl::StatusOr<RestartPolicy> PolicyFromJson(const Json& json) {
  RestartPolicy policy;
  constexpr char kWhere[] = "restarts";
  KT_RETURN_IF_ERROR(Assign(JsonInt(json, "backoff_first_ms", kWhere, 1, kDurationMaxMs),
                            policy.backoff_first_ms));
  KT_RETURN_IF_ERROR(
      Assign(JsonInt(json, "backoff_max_ms", kWhere, 1, kDurationMaxMs), policy.backoff_max_ms));
  KT_RETURN_IF_ERROR(
      Assign(JsonInt(json, "healthy_ms", kWhere, 1, kDurationMaxMs), policy.healthy_ms));
  KT_RETURN_IF_ERROR(
      Assign(JsonInt(json, "restarts_max", kWhere, 0, 1000000), policy.restarts_max));
  KT_RETURN_IF_ERROR(
      Assign(JsonInt(json, "window_ms", kWhere, 1, kDurationMaxMs), policy.window_ms));
  return policy;
}

}  // namespace

bool IsPlainName(const std::string& name) {
  auto plain = [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; };
  return !name.empty() && name.size() < kNodeNameBytes &&
         std::all_of(name.begin(), name.end(), plain);
}

Json NodeSpecToJson(const NodeSpec& spec) {
  Json processes = Json::array();
  for (const ProcessSpec& p : spec.processes) {
    Json env = Json::object();
    for (const auto& [key, value] : p.env) env[key] = value;
    processes.push_back({{"name", p.name},
                         {"argv", p.argv},
                         {"env", env},
                         {"stop_order", p.stop_order},
                         {"stop_timeout_ms", p.stop_timeout_ms},
                         {"critical", p.critical},
                         {"reports_ready", p.reports_ready},
                         {"inherits_listener", p.inherits_listener}});
  }
  const RestartPolicy& r = spec.restarts;
  return {{"version", kVersion},
          {"listen_host", spec.listen_host},
          {"listen_port", spec.listen_port},
          {"ready_text", spec.ready_text},
          {"started_ns", spec.started_ns},
          {"log_level", spec.log_level},
          {"log_format", spec.log_format},
          {"restarts",
           {{"backoff_first_ms", r.backoff_first_ms},
            {"backoff_max_ms", r.backoff_max_ms},
            {"healthy_ms", r.healthy_ms},
            {"restarts_max", r.restarts_max},
            {"window_ms", r.window_ms}}},
          {"processes", processes}};
}

absl::StatusOr<NodeSpec> NodeSpecFromJson(const Json& json) {
  NodeSpec spec;
  constexpr char kWhere[] = "node spec";
  if (!json.is_object()) return InvalidArgument("{}: must be an object", kWhere);
  int version = 0;
  KT_RETURN_IF_ERROR(Assign(JsonInt(json, "version", kWhere), version));
  if (version != kVersion)
    return InvalidArgument("{}: version is {}, this kt-node reads {}", kWhere, version, kVersion);
  KT_RETURN_IF_ERROR(Assign(JsonString(json, "listen_host", kWhere), spec.listen_host));
  KT_RETURN_IF_ERROR(Assign(JsonInt(json, "listen_port", kWhere, 0, 65535), spec.listen_port));
  KT_RETURN_IF_ERROR(Assign(JsonString(json, "ready_text", kWhere), spec.ready_text));
  KT_RETURN_IF_ERROR(Assign(JsonInt(json, "started_ns", kWhere, 0), spec.started_ns));
  KT_RETURN_IF_ERROR(Assign(JsonString(json, "log_level", kWhere), spec.log_level));
  KT_RETURN_IF_ERROR(Assign(JsonString(json, "log_format", kWhere), spec.log_format));
  if (auto restarts = json.find("restarts"); restarts != json.end()) {
    KT_ASSIGN_OR_RETURN(spec.restarts, PolicyFromJson(*restarts));
  }
  auto processes = json.find("processes");
  if (processes == json.end() || !processes->is_array() || processes->empty()) {
    return InvalidArgument("{}: processes must be a non-empty list", kWhere);
  }
  std::set<std::string> names;
  for (const Json& item : *processes) {
    KT_ASSIGN_OR_RETURN(ProcessSpec process,
                        ProcessFromJson(item, fmt::format("processes[{}]", names.size())));
    if (!names.insert(process.name).second)
      return InvalidArgument("{}: two processes named {}", kWhere, process.name);
    spec.processes.push_back(std::move(process));
  }
  return spec;
}

}  // namespace kt
