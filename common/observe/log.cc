// SPDX-License-Identifier: Apache-2.0
#include "common/observe/log.h"

#include <fmt/chrono.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>

#include "common/base/exit_code.h"
#include "common/base/json.h"
#include "common/base/status.h"

namespace kt {
namespace {

class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    using std::chrono::milliseconds;
    auto since_epoch =
        std::chrono::duration_cast<milliseconds>(message.time.time_since_epoch()).count();
    Json line;
    line["time"] =
        fmt::format("{:%FT%T}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(since_epoch / 1000)),
                    since_epoch % 1000);
    auto level = spdlog::level::to_string_view(message.level);
    line["level"] = std::string(level.data(), level.size());
    line["process"] = std::string(message.logger_name.data(), message.logger_name.size());
    line["pid"] = getpid();
    line["message"] = std::string(message.payload.data(), message.payload.size());
    std::string text = DumpJson(line) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

}  // namespace

absl::Status SetUpLog(const std::string& process_name, const std::string& level,
                      const std::string& format) {
  spdlog::level::level_enum parsed =
      spdlog::level::from_str(level);  // "off" for a word it does not know
  if (parsed == spdlog::level::off || parsed == spdlog::level::critical) {
    return InvalidArgument("log level {}: use trace, debug, info, warning or error", level);
  }
  auto logger = std::make_shared<spdlog::logger>(process_name,
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  if (format == "json") {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else if (format == "text") {
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %n: %v");
  } else {
    return InvalidArgument("log format {}: use text or json", format);
  }
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

int FailProcess(const absl::Status& status) {
  std::string sentence = Message(status);
  spdlog::error("{}", sentence);
  if (const char* fd = std::getenv("KT_ERROR_FD"); fd != nullptr) {
    // Best effort: the sentence is in the log already.
    [[maybe_unused]] ssize_t written =
        write(std::atoi(fd), sentence.data(), std::min<size_t>(sentence.size(), 4096));
  }
  return ExitCodeFor(status);
}

}  // namespace kt
