// SPDX-License-Identifier: Apache-2.0
// The HTTP endpoints: a body in, an answer into a ReplyChannel. Called on the channel's thread;
// long work runs on the GenerationService's threads.
#ifndef KT_COORDINATOR_API_OPENAI_SERVICE_H_
#define KT_COORDINATOR_API_OPENAI_SERVICE_H_

#include <memory>
#include <string>

#include "coordinator/api/expert_recorder.h"
#include "coordinator/api/generation_service.h"
#include "coordinator/api/reply_channel.h"

namespace kt::api {

class OpenAiService {
 public:
  using Reply = std::shared_ptr<ReplyChannel>;

  // Both outlive this.
  OpenAiService(GenerationService* service, ExpertRecorder* recorder)
      : service_(service), recorder_(recorder) {}

  void ListModels(Reply reply);
  void GetModel(const std::string& id, Reply reply);
  void Generate(Endpoint endpoint, std::string body,
                Reply reply);  // /v1/chat/completions, /v1/completions
  // {"prompt": text or list of texts} or {"messages": […]} → {"tokens", "count", "max_model_len"};
  // lists for a list.
  void Tokenize(std::string body, Reply reply);
  // {"tokens": ids or list of lists, "skip_special_tokens": true} → {"text"}; a list for a list.
  void Detokenize(std::string body, Reply reply);

  void Health(bool verbose, Reply reply);  // 200 with an empty body, or 503 with the reasons
  void HealthGenerate(Reply reply);        // one token; 200 or 503
  void ModelInfo(Reply reply);
  void ServerInfo(Reply reply);
  void Metrics(Reply reply);
  void AbortRequest(std::string body, Reply reply);  // {"rid": id} or {"abort_all": true}
  void FlushCache(Reply reply);  // requests that run keep what they hold
  void StartExpertRecord(Reply reply);
  void StopExpertRecord(Reply reply);
  void DumpExpertRecord(Reply reply);  // the text names the file

 private:
  // Parses `body` and runs `work` on a worker thread, and sends what it returns.
  void AnswerBody(std::string body, std::function<absl::StatusOr<Json>(const Json&)> work,
                  Reply reply);
  Json ModelCard() const;

  GenerationService* const service_;
  ExpertRecorder* const recorder_;
};

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_OPENAI_SERVICE_H_
