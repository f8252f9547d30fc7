// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/runtime_config.h"

#include <google/protobuf/util/json_util.h>

#include <fstream>
#include <sstream>

#include "common/base/status.h"

namespace kt {

std::string RuntimeConfigToJson(proto::RuntimeConfig config, bool with_secrets) {
  if (!with_secrets && !config.server().api_key().empty())
    config.mutable_server()->set_api_key("***");
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.always_print_primitive_fields = true;
  print.preserve_proto_field_names = true;
  std::string json;
  // Fails only for Any messages, which the configuration has none of.
  (void)google::protobuf::util::MessageToJsonString(config, &json, print);
  return json;
}

absl::StatusOr<proto::RuntimeConfig> ReadRuntimeConfig(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) return NotFound("{}: cannot be read", path);
  proto::RuntimeConfig config;
  auto status = google::protobuf::util::JsonStringToMessage(text.str(), &config);
  if (!status.ok()) return InvalidArgument("{}: {}", path, status.ToString());
  return config;
}

}  // namespace kt
