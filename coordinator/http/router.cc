// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/router.h"

#include "common/base/status.h"
#include "coordinator/api/api_error.h"
#include "coordinator/api/api_key.h"

namespace kt::http {
namespace {

using api::Endpoint;
using api::OpenAiService;
using Reply = OpenAiService::Reply;

constexpr std::string_view kModelPrefix = "/v1/models/";  // the rest of the path is the model's id

struct Route {
  std::string_view path;
  bool get, post;
  bool open;  // without API key
  void (*handle)(OpenAiService& service, HttpRequest& request, Reply reply);
};

constexpr Route kRoutes[] = {
    {"/v1/models", true, false, false,
     [](OpenAiService& s, HttpRequest&, Reply r) { s.ListModels(r); }},
    {kModelPrefix, true, false, false,
     [](OpenAiService& s, HttpRequest& q, Reply r) {
       s.GetModel(q.path.substr(kModelPrefix.size()), r);
     }},
    {"/v1/chat/completions", false, true, false,
     [](OpenAiService& s, HttpRequest& q, Reply r) {
       s.Generate(Endpoint::kChat, std::move(q.body), r);
     }},
    {"/v1/completions", false, true, false,
     [](OpenAiService& s, HttpRequest& q, Reply r) {
       s.Generate(Endpoint::kCompletion, std::move(q.body), r);
     }},
    {"/v1/tokenize", false, true, false,
     [](OpenAiService& s, HttpRequest& q, Reply r) { s.Tokenize(std::move(q.body), r); }},
    {"/tokenize", false, true, false,
     [](OpenAiService& s, HttpRequest& q, Reply r) { s.Tokenize(std::move(q.body), r); }},
    {"/v1/detokenize", false, true, false,
     [](OpenAiService& s, HttpRequest& q, Reply r) { s.Detokenize(std::move(q.body), r); }},
    {"/detokenize", false, true, false,
     [](OpenAiService& s, HttpRequest& q, Reply r) { s.Detokenize(std::move(q.body), r); }},
    {"/health", true, false, true,
     [](OpenAiService& s, HttpRequest& q, Reply r) {
       s.Health(q.query == "verbose=1" || q.query == "verbose=true", r);
     }},
    {"/health_generate", true, false, false,
     [](OpenAiService& s, HttpRequest&, Reply r) { s.HealthGenerate(r); }},
    {"/model_info", true, false, false,
     [](OpenAiService& s, HttpRequest&, Reply r) { s.ModelInfo(r); }},
    {"/get_model_info", true, false, false,
     [](OpenAiService& s, HttpRequest&, Reply r) { s.ModelInfo(r); }},
    {"/server_info", true, false, false,
     [](OpenAiService& s, HttpRequest&, Reply r) { s.ServerInfo(r); }},
    {"/get_server_info", true, false, false,
     [](OpenAiService& s, HttpRequest&, Reply r) { s.ServerInfo(r); }},
    {"/metrics", true, false, true, [](OpenAiService& s, HttpRequest&, Reply r) { s.Metrics(r); }},
    {"/abort_request", false, true, false,
     [](OpenAiService& s, HttpRequest& q, Reply r) { s.AbortRequest(std::move(q.body), r); }},
    {"/flush_cache", true, true, false,
     [](OpenAiService& s, HttpRequest&, Reply r) { s.FlushCache(r); }},
    {"/start_expert_distribution_record", true, true, false,
     [](OpenAiService& s, HttpRequest&, Reply r) { s.StartExpertRecord(r); }},
    {"/stop_expert_distribution_record", true, true, false,
     [](OpenAiService& s, HttpRequest&, Reply r) { s.StopExpertRecord(r); }},
    {"/dump_expert_distribution_record", true, true, false,
     [](OpenAiService& s, HttpRequest&, Reply r) { s.DumpExpertRecord(r); }},
};

const Route* FindRoute(std::string_view path) {
  for (const Route& route : kRoutes) {
    const bool prefix = route.path == kModelPrefix;
    if (prefix ? path.starts_with(route.path) && path.size() > route.path.size()
               : path == route.path)
      return &route;
  }
  return nullptr;
}

bool Serves(const Route& route, std::string_view method) {
  return (method == "GET" && route.get) || (method == "POST" && route.post) || method == "OPTIONS";
}

}  // namespace

std::string Router::Allow(const std::string& path) {
  const Route* route = FindRoute(path);
  if (route == nullptr) return "";
  return fmt::format("{}{}OPTIONS", route->get ? "GET, HEAD, " : "", route->post ? "POST, " : "");
}

absl::Status Router::Admit(const HttpRequest& head) {
  const Route* route = FindRoute(head.path);
  const bool open = route != nullptr && route->open;
  if (!api_key_.empty() && !open && head.method != "OPTIONS") {
    if (!api::BearerMatches(head.authorization, api_key_)) {
      return Unauthenticated(
          "{}; send the server's key as \"Authorization: Bearer KEY\"",
          head.authorization.empty() ? "an API key is required" : "the API key is wrong");
    }
  }
  if (route == nullptr)
    return api::WithCode(NotFound("{} {}: no such path", head.method, head.path.substr(0, 200)),
                         api::kPathNotFound);
  if (!Serves(*route, head.method)) {
    return api::WithCode(Unimplemented("{} is not served on {}; use {}", head.method,
                                       head.path.substr(0, 200), Allow(head.path)),
                         api::kMethodNotAllowed);
  }
  return absl::OkStatus();
}

void Router::Handle(HttpRequest request, std::shared_ptr<api::ReplyChannel> reply) {
  if (request.method == "OPTIONS") return reply->Send(204, "", "");
  FindRoute(request.path)->handle(*service_, request, std::move(reply));
}

}  // namespace kt::http
