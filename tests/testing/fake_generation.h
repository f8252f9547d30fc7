// SPDX-License-Identifier: Apache-2.0
// Stand-ins for the model behind the API: a tokenizer of bytes, a plain template, and a generator
// that says the prompt again.
#ifndef KT_TESTS_TESTING_FAKE_GENERATION_H_
#define KT_TESTS_TESTING_FAKE_GENERATION_H_

#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "coordinator/api/expert_recorder.h"
#include "coordinator/api/runtime_status.h"
#include "coordinator/generation/generation.h"
#include "coordinator/template/prompt_renderer.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt::testing {

// Ids 0 to 255 are bytes, 256 is the special token "<|end|>".
class FakeTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kEnd = 256;

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;
  std::string TokenBytes(int32_t id) const override;
  int32_t vocab_size() const override { return 257; }
  bool IsSpecial(int32_t id) const override { return id == kEnd; }
  std::optional<int32_t> TokenId(std::string_view token) const override;
};

// "[role]content" for each message. Variables "raise", "loop" and "allocate" fail as a bad template
// does; "role_suffix" shows.
class FakeRenderer : public PromptRenderer {
 public:
  absl::StatusOr<std::string> Render(const Json& variables) override;
};

class FakeStatus : public api::RuntimeStatus {
 public:
  bool Ready() const override { return ready.load(); }
  Json Health() const override;
  Json ModelInfo() const override { return {{"model_path", "fake"}, {"is_generation", true}}; }
  Json ServerInfo() const override { return {{"version", "0"}}; }
  std::atomic<bool> ready = true;
};

class FakeRecorder : public api::ExpertRecorder {
 public:
  void StartRecord() override { recording = true; }
  void StopRecord() override { recording = false; }
  absl::StatusOr<std::string> DumpRecord() override {
    if (!recording) return absl::FailedPreconditionError("nothing was recorded");
    return "/records/1.json";
  }
  std::atomic<bool> recording = false;
};

// Token i of choice c is prompt token (i + c) modulo the prompt's length, one a step; <|end|> ends
// an answer.
class FakeGenerator : public Generator {
 public:
  struct Options {
    std::chrono::microseconds step{0};  // at least this long
    int queue_max = 1 << 20;
    int fail_after_tokens = -1;  // then the request fails with Internal
    int cached_tokens = 0;       // that every event says
  };
  FakeGenerator(const Tokenizer* tokenizer, const Options& options);
  ~FakeGenerator() override;

  absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  void Cancel(const std::string& request_id) override;
  void FlushCache() override { ++flushes_; }

  void Hold(bool hold);   // accepted requests wait, as in a full queue
  int live() const;       // requests accepted and neither finished nor cancelled
  int cancelled() const;  // requests cancelled while live
  int flushes() const { return flushes_; }
  int64_t steps() const;
  // Waits until live() and cancelled() are these, at most 10 s.
  bool WaitFor(int live, int cancelled) const;
  GenerationRequest last_request() const;

 private:
  struct Choice {
    std::string text;  // all of it
    size_t sent = 0;   // bytes of text
    int tokens = 0;
    bool finished = false;
  };
  struct Running {
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
    std::vector<Choice> choices;
    bool first = true;
  };

  void Loop();
  bool Step(Running& running);  // false: finished
  GenerationEvent NextToken(const Running& running, int index, Choice& choice);

  const Tokenizer* const tokenizer_;
  const Options options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::list<Running> running_;
  GenerationRequest last_request_;
  bool hold_ = false;
  std::atomic<int> flushes_ = 0;
  bool stopping_ = false;
  int cancelled_ = 0;
  int64_t steps_ = 0;
  std::thread thread_;
};

}  // namespace kt::testing

#endif  // KT_TESTS_TESTING_FAKE_GENERATION_H_
