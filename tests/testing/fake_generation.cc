// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/fake_generation.h"

#include <algorithm>

#include "common/base/status.h"

namespace kt::testing {
namespace {

constexpr std::string_view kEndText = "<|end|>";

// Invalid bytes become U+FFFD.
std::string ValidUtf8(const std::string& bytes) {
  return ParseJson(DumpJson(Json(bytes)))->get<std::string>();
}

// Length of the longest prefix of `text` that ends with a whole character.
size_t WholeCharacters(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(4, text.size()); ++back) {
    const auto c = static_cast<unsigned char>(text[text.size() - back]);
    if ((c & 0xC0) == 0x80) continue;
    const size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> FakeTokenizer::Encode(std::string_view text) const {
  if (ValidUtf8(std::string(text)) != text) return InvalidArgument("text is not UTF-8");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with(kEndText)) {
      ids.push_back(kEnd);
      i += kEndText.size() - 1;
    } else {
      ids.push_back(static_cast<unsigned char>(text[i]));
    }
  }
  return ids;
}

std::string FakeTokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (int32_t id : ids) {
    if (!(skip_special_tokens && IsSpecial(id))) bytes += TokenBytes(id);
  }
  return ValidUtf8(bytes);
}

std::string FakeTokenizer::TokenBytes(int32_t id) const {
  if (id == kEnd) return std::string(kEndText);
  return id >= 0 && id < 256 ? std::string(1, static_cast<char>(id)) : std::string();
}

std::optional<int32_t> FakeTokenizer::TokenId(std::string_view token) const {
  if (token == kEndText) return kEnd;
  return token.size() == 1 ? std::optional<int32_t>(static_cast<unsigned char>(token[0]))
                           : std::nullopt;
}

absl::StatusOr<std::string> FakeRenderer::Render(const Json& variables) {
  if (variables.contains("raise"))
    return InvalidArgument("template: {}", variables["raise"].get<std::string>());
  if (variables.contains("loop"))
    return DeadlineExceeded("template: rendering took longer than 5000 ms");
  if (variables.contains("allocate"))
    return ResourceExhausted("template: rendering needs more than 512 MiB");
  std::string text;
  for (const Json& message : variables["messages"]) {
    text += fmt::format("[{}]{}", message["role"].get<std::string>(),
                        message["content"].get<std::string>());
  }
  return text;
}

Json FakeStatus::Health() const {
  Json reasons = Json::array();
  if (!ready) reasons.push_back("weights are being read");
  return {{"state", ready ? "ready" : "starting"},
          {"progress", ready ? 1.0 : 0.5},
          {"reasons", reasons},
          {"warnings", {"two workers on one node"}}};
}

FakeGenerator::FakeGenerator(const Tokenizer* tokenizer, const Options& options)
    : tokenizer_(tokenizer), options_(options), thread_([this] { Loop(); }) {}

FakeGenerator::~FakeGenerator() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status FakeGenerator::Submit(GenerationRequest request,
                                   std::shared_ptr<GenerationSink> sink) {
  {
    std::lock_guard lock(mutex_);
    if (static_cast<int>(running_.size()) >= options_.queue_max)
      return ResourceExhausted("the queue is full: {} requests wait", running_.size());
    last_request_ = request;
    Running running;
    running.choices.resize(static_cast<size_t>(request.n));
    running.request = std::move(request);
    running.sink = std::move(sink);
    running_.push_back(std::move(running));
  }
  changed_.notify_all();
  return absl::OkStatus();
}

void FakeGenerator::Cancel(const std::string& request_id) {
  std::list<Running> gone;  // sinks are released without the lock
  {
    std::lock_guard lock(mutex_);
    for (auto it = running_.begin(); it != running_.end(); ++it) {
      if (it->request.id != request_id) continue;
      gone.splice(gone.end(), running_, it);
      ++cancelled_;
      break;
    }
  }
  changed_.notify_all();
}

void FakeGenerator::Hold(bool hold) {
  {
    std::lock_guard lock(mutex_);
    hold_ = hold;
  }
  changed_.notify_all();
}

int FakeGenerator::live() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(running_.size());
}

int FakeGenerator::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

int64_t FakeGenerator::steps() const {
  std::lock_guard lock(mutex_);
  return steps_;
}

GenerationRequest FakeGenerator::last_request() const {
  std::lock_guard lock(mutex_);
  return last_request_;
}

bool FakeGenerator::WaitFor(int live, int cancelled) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [&] {
    return static_cast<int>(running_.size()) == live && cancelled_ == cancelled;
  });
}

void FakeGenerator::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || (!hold_ && !running_.empty()); });
    if (stopping_) return;
    ++steps_;
    std::list<Running> done;
    for (auto it = running_.begin(); it != running_.end();) {
      auto next = std::next(it);
      if (!Step(*it)) done.splice(done.end(), running_, it);
      it = next;
    }
    changed_.notify_all();
    lock.unlock();
    done.clear();
    if (options_.step.count() > 0) std::this_thread::sleep_for(options_.step);
    lock.lock();
  }
}

bool FakeGenerator::Step(Running& running) {
  const GenerationRequest& request = running.request;
  bool open = false;
  for (int c = 0; c < request.n; ++c) {
    Choice& choice = running.choices[static_cast<size_t>(c)];
    if (choice.finished) continue;
    GenerationEvent event;
    if (options_.fail_after_tokens >= 0 && choice.tokens >= options_.fail_after_tokens) {
      event.error = Internal("the worker is gone");
      running.sink->OnEvent(std::move(event));
      return false;
    }
    event = NextToken(running, c, choice);
    if (running.first && request.prompt_logprobs) {
      for (size_t i = 1; i < request.prompt_ids.size(); ++i)
        event.prompt_logprobs.push_back(
            {request.prompt_ids[i], -0.25f, {{request.prompt_ids[i], -0.25f}}});
    }
    running.first = false;
    choice.finished = event.finish_reason != FinishReason::kNone;
    open = open || !choice.finished;
    running.sink->OnEvent(std::move(event));
  }
  return open;
}

GenerationEvent FakeGenerator::NextToken(const Running& running, int index, Choice& choice) {
  const GenerationRequest& request = running.request;
  GenerationEvent event;
  event.choice = index;
  event.cached_tokens = options_.cached_tokens;
  if (request.max_new_tokens == 0) {
    event.finish_reason = FinishReason::kLength;
    return event;
  }
  const int32_t id =
      request.prompt_ids[static_cast<size_t>(choice.tokens + index) % request.prompt_ids.size()];
  ++choice.tokens;
  event.token_ids = {id};
  if (request.logprobs) {
    TokenLogprob logprob{id, -0.5f, {}};
    for (int k = 0; k < request.top_logprobs; ++k)
      logprob.top.emplace_back((id + k) % 256, -0.5f - static_cast<float>(k));
    event.logprobs.push_back(std::move(logprob));
  }
  if (id == FakeTokenizer::kEnd && !request.ignore_eos) {
    event.finish_reason = FinishReason::kStop;
    event.matched_token = id;
  } else {
    if (!(request.skip_special_tokens && tokenizer_->IsSpecial(id)))
      choice.text += tokenizer_->TokenBytes(id);
    if (choice.tokens >= request.max_new_tokens) event.finish_reason = FinishReason::kLength;
  }
  size_t held_back = 0;
  for (const std::string& stop : request.stop) {
    held_back = std::max(held_back, stop.size() - 1);
    if (auto at = choice.text.find(stop); at != std::string::npos && event.matched_stop.empty()) {
      choice.text.resize(at);
      event.matched_stop = stop;
      event.finish_reason = FinishReason::kStop;
    }
  }
  size_t end = choice.text.size();
  if (event.finish_reason == FinishReason::kNone) {
    end = std::max(choice.sent, end - std::min(end, held_back));
    end = choice.sent +
          WholeCharacters(std::string_view(choice.text).substr(choice.sent, end - choice.sent));
  }
  event.text =
      ValidUtf8(choice.text.substr(std::min(choice.sent, choice.text.size()), end - choice.sent));
  choice.sent = end;
  return event;
}

}  // namespace kt::testing
