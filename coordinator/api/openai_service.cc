// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/openai_service.h"

#include "coordinator/api/api_error.h"
#include "coordinator/api/prepare.h"
#include "coordinator/api/request_fields.h"
#include "coordinator/api/request_parser.h"
#include "coordinator/api/response.h"

namespace kt::api {
namespace {

constexpr char kJson[] = "application/json";
constexpr char kText[] = "text/plain; charset=utf-8";
constexpr std::chrono::milliseconds kHealthGenerateTimeout(20000);

// A generation call over HTTP: events become chunks or one whole answer.
class HttpCall : public CallClient, public std::enable_shared_from_this<HttpCall> {
 public:
  HttpCall(GenerationService* service, OpenAiService::Reply reply)
      : service_(service), reply_(std::move(reply)) {}

  void Start(std::function<absl::StatusOr<ApiRequest>()> parse) {
    auto call = service_->Start(std::move(parse), shared_from_this());
    reply_->OnClosed([call] { call->Cancel(); });
  }

  void Post(std::function<void()> task) override { reply_->Post(std::move(task)); }

  void OnPrepared(std::shared_ptr<const PreparedCall> call) override {
    prepared_ = call;
    response_ =
        std::make_unique<Response>(std::move(call), service_->facts().name, &service_->tokenizer());
  }

  // A stream begins with its first event, so that what fails before is an ordinary HTTP error.
  void OnEvent(int prompt, GenerationEvent event) override {
    std::vector<Json> chunks;
    response_->Add(prompt, std::move(event), &chunks);
    if (!prepared_->request.stream) return;
    if (!streaming_) reply_->StartEvents();
    streaming_ = true;
    for (const Json& chunk : chunks) reply_->SendEvent(DumpJson(chunk));
  }

  void OnEnd(absl::Status status) override {
    if (!status.ok()) return reply_->Fail(status);
    if (!prepared_->request.stream) return reply_->Send(200, kJson, DumpJson(response_->Whole()));
    if (prepared_->request.include_usage) reply_->SendEvent(DumpJson(response_->UsageChunk()));
    reply_->SendEvent("[DONE]");
    reply_->EndEvents();
  }

 private:
  GenerationService* const service_;
  const OpenAiService::Reply reply_;
  std::shared_ptr<const PreparedCall> prepared_;
  std::unique_ptr<Response> response_;
  bool streaming_ = false;
};

// Wants one token, whatever it is.
class HealthCall : public CallClient, public std::enable_shared_from_this<HealthCall> {
 public:
  HealthCall(GenerationService* service, OpenAiService::Reply reply)
      : service_(service), reply_(std::move(reply)) {}

  void Start() {
    auto call = service_->Start(
        [] {
          ApiRequest request;
          request.id = NewId("health-");
          request.prompts.emplace_back(std::vector<int32_t>{0});
          request.max_tokens = 1;
          request.generation.sampling.temperature = 0;
          request.generation.ignore_eos = true;
          return request;
        },
        shared_from_this());
    reply_->OnClosed([call] { call->Cancel(); });
    reply_->PostAfter(kHealthGenerateTimeout, [self = weak_from_this(), call] {
      auto strong = self.lock();
      if (strong == nullptr || strong->answered_) return;
      call->Cancel();
      strong->reply_->Fail(
          Unavailable("no token was generated within {} s", kHealthGenerateTimeout.count() / 1000));
    });
  }

  void Post(std::function<void()> task) override { reply_->Post(std::move(task)); }
  void OnPrepared(std::shared_ptr<const PreparedCall>) override {}
  void OnEvent(int, GenerationEvent) override {}
  void OnEnd(absl::Status status) override {
    answered_ = true;
    if (status.ok()) return reply_->Send(200, kText, "");
    reply_->Fail(Unavailable("generating a token failed: {}", Message(status)));
  }

 private:
  GenerationService* const service_;
  const OpenAiService::Reply reply_;
  bool answered_ = false;
};

absl::StatusOr<std::vector<int32_t>> TokenizeOne(GenerationService& service, const Prompt& prompt,
                                                 const std::string& param) {
  if (std::holds_alternative<std::string>(prompt))
    return service.tokenizer().Encode(std::get<std::string>(prompt));
  return WithParam(FieldError(param, "must be a string or a list of strings, got token ids"),
                   param);
}

absl::StatusOr<Json> TokenizeBody(GenerationService& service, const Json& body) {
  const ModelFacts& facts = service.facts();
  Json out = {{"tokens", nullptr}, {"count", nullptr}, {"max_model_len", facts.context_length}};
  if (body.contains("messages")) {
    KT_ASSIGN_OR_RETURN(ApiRequest request, ReadChatRequest(body, facts, service.defaults()));
    KT_ASSIGN_OR_RETURN(std::string text, RenderPrompt(request, service.renderer()));
    KT_ASSIGN_OR_RETURN(auto ids, service.tokenizer().Encode(text));
    out["count"] = ids.size();
    out["tokens"] = std::move(ids);
    return out;
  }
  const Json prompt = body.contains("prompt") ? body["prompt"] : Json();
  if (prompt == "") {
    out["tokens"] = Json::array();
    out["count"] = 0;
    return out;
  }
  KT_ASSIGN_OR_RETURN(auto prompts, ReadPrompts(prompt, "prompt", facts.vocab_size));
  Json tokens = Json::array(), counts = Json::array();
  for (const Prompt& one : prompts) {
    auto ids = TokenizeOne(service, one, "prompt");
    if (!ids.ok()) return WithParam(ids.status(), "prompt");
    counts.push_back(ids->size());
    tokens.push_back(*std::move(ids));
  }
  out["tokens"] = prompt.is_array() ? std::move(tokens) : std::move(tokens[0]);
  out["count"] = prompt.is_array() ? std::move(counts) : std::move(counts[0]);
  return out;
}

absl::StatusOr<Json> DetokenizeBody(GenerationService& service, const Json& body) {
  RequestFields fields(body);
  const bool skip = fields.Bool("skip_special_tokens", true);
  KT_RETURN_IF_ERROR(fields.status());
  const Json tokens = body.contains("tokens") ? body["tokens"] : Json();
  const int vocab_size = service.facts().vocab_size;
  if (!tokens.is_array() || tokens.empty() || !tokens[0].is_array()) {
    KT_ASSIGN_OR_RETURN(auto ids, ReadTokenIds(tokens, "tokens", vocab_size, 0, kJsonValuesMax));
    return Json{{"text", service.tokenizer().Decode(ids, skip)}};
  }
  Json texts = Json::array();
  for (const Json& list : tokens) {
    KT_ASSIGN_OR_RETURN(auto ids, ReadTokenIds(list, fmt::format("tokens[{}]", texts.size()),
                                               vocab_size, 0, kJsonValuesMax));
    texts.push_back(service.tokenizer().Decode(ids, skip));
  }
  return Json{{"text", std::move(texts)}};
}

}  // namespace

Json OpenAiService::ModelCard() const {
  const ModelFacts& facts = service_->facts();
  return {{"id", facts.name},
          {"object", "model"},
          {"created", facts.created},
          {"owned_by", "kt"},
          {"root", facts.name},
          {"parent", nullptr},
          {"max_model_len", facts.context_length}};
}

void OpenAiService::ListModels(Reply reply) {
  reply->Send(200, kJson, DumpJson({{"object", "list"}, {"data", Json::array({ModelCard()})}}));
}

void OpenAiService::GetModel(const std::string& id, Reply reply) {
  if (id == service_->facts().name) return reply->Send(200, kJson, DumpJson(ModelCard()));
  reply->Fail(WithCode(WithParam(NotFound("model {} does not exist; this server has {}",
                                          JsonExcerpt(id), service_->facts().name),
                                 "model"),
                       kModelNotFound));
}

void OpenAiService::Generate(Endpoint endpoint, std::string body, Reply reply) {
  std::make_shared<HttpCall>(service_, std::move(reply))
      ->Start([service = service_, endpoint, body = std::move(body)] {
        return ParseRequest(endpoint, body, service->facts(), service->defaults());
      });
}

void OpenAiService::AnswerBody(std::string body,
                               std::function<absl::StatusOr<Json>(const Json&)> work, Reply reply) {
  absl::Status status = service_->Run([body = std::move(body), work = std::move(work), reply] {
    Json out;
    absl::Status done = ReadBody(body, [&](const Json& object) -> absl::Status {
      KT_ASSIGN_OR_RETURN(out, work(object));
      return absl::OkStatus();
    });
    reply->Post([reply, done, text = DumpJson(out)] {
      if (done.ok())
        reply->Send(200, kJson, text);
      else
        reply->Fail(done);
    });
  });
  if (!status.ok()) reply->Fail(status);
}

void OpenAiService::Tokenize(std::string body, Reply reply) {
  AnswerBody(
      std::move(body), [this](const Json& object) { return TokenizeBody(*service_, object); },
      std::move(reply));
}

void OpenAiService::Detokenize(std::string body, Reply reply) {
  AnswerBody(
      std::move(body), [this](const Json& object) { return DetokenizeBody(*service_, object); },
      std::move(reply));
}

void OpenAiService::Health(bool verbose, Reply reply) {
  const bool ready = service_->status().Ready();
  if (ready && !verbose) return reply->Send(200, kText, "");
  reply->Send(ready ? 200 : 503, kJson, DumpJson(service_->status().Health()));
}

void OpenAiService::HealthGenerate(Reply reply) {
  std::make_shared<HealthCall>(service_, std::move(reply))->Start();
}
void OpenAiService::ModelInfo(Reply reply) {
  reply->Send(200, kJson, DumpJson(service_->status().ModelInfo()));
}
void OpenAiService::ServerInfo(Reply reply) {
  reply->Send(200, kJson, DumpJson(service_->status().ServerInfo()));
}

void OpenAiService::Metrics(Reply reply) {
  reply->Send(200, "text/plain; version=0.0.4; charset=utf-8", service_->metrics().Serialize());
}

void OpenAiService::AbortRequest(std::string body, Reply reply) {
  AnswerBody(
      std::move(body),
      [this](const Json& object) -> absl::StatusOr<Json> {
        RequestFields fields(object);
        const bool all = fields.Bool("abort_all", false);
        const auto rid = fields.String("rid", kRequestIdBytesMax);
        KT_RETURN_IF_ERROR(fields.status());
        if (!all && !rid) return FieldError("rid", "or abort_all: true must be given");
        if (all)
          service_->AbortAll();
        else
          KT_RETURN_IF_ERROR(service_->Abort(*rid));
        return Json::object();
      },
      std::move(reply));
}

void OpenAiService::FlushCache(Reply reply) {
  service_->FlushCache();
  reply->Send(200, kText, "Cache flushed.\n");
}

void OpenAiService::StartExpertRecord(Reply reply) {
  recorder_->StartRecord();
  reply->Send(200, kText, "Recording of the expert distribution started.\n");
}

void OpenAiService::StopExpertRecord(Reply reply) {
  recorder_->StopRecord();
  reply->Send(200, kText, "Recording of the expert distribution stopped.\n");
}

void OpenAiService::DumpExpertRecord(Reply reply) {
  absl::Status status = service_->Run([recorder = recorder_, reply] {
    absl::StatusOr<std::string> path = recorder->DumpRecord();
    reply->Post([reply, path = std::move(path)] {
      if (!path.ok()) return reply->Fail(path.status());
      reply->Send(200, kText, fmt::format("Expert distribution written to {}\n", *path));
    });
  });
  if (!status.ok()) reply->Fail(status);
}

}  // namespace kt::api
