// SPDX-License-Identifier: Apache-2.0
// Paths and methods → OpenAiService, and the API key.
#ifndef KT_COORDINATOR_HTTP_ROUTER_H_
#define KT_COORDINATOR_HTTP_ROUTER_H_

#include <string>

#include "coordinator/api/openai_service.h"
#include "coordinator/http/http_handler.h"

namespace kt::http {

class Router : public HttpHandler {
 public:
  // `api_key` empty: open. /health and /metrics are always open.
  Router(api::OpenAiService* service, std::string api_key)
      : service_(service), api_key_(std::move(api_key)) {}

  absl::Status Admit(const HttpRequest& head) override;
  void Handle(HttpRequest request, std::shared_ptr<api::ReplyChannel> reply) override;
  std::string Allow(const std::string& path) override;

 private:
  api::OpenAiService* const service_;
  const std::string api_key_;
};

}  // namespace kt::http

#endif  // KT_COORDINATOR_HTTP_ROUTER_H_
