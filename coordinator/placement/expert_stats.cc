// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/expert_stats.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <iterator>
#include <utility>

#include "common/base/json.h"
#include "common/base/status.h"

namespace kt {
namespace {

constexpr int kNamesMax = 1000;  // dumps within one second

// One layer's counts on a line.
template <typename T>
void AppendLayers(const std::vector<T>& counts, size_t experts, std::string* out) {
  for (size_t begin = 0; begin < counts.size(); begin += experts) {
    const auto first = counts.begin() + static_cast<std::ptrdiff_t>(begin);
    fmt::format_to(std::back_inserter(*out), "{}[{}]", begin == 0 ? "\n" : ",\n",
                   fmt::join(first, first + static_cast<std::ptrdiff_t>(experts), ","));
  }
}

// A new file in `dir` that only this user may read, named by the time; its path goes to `path`.
int CreateFile(const std::string& dir, std::string* path) {
  const std::string base =
      fmt::format("{}/expert_distribution_recorder_{}", dir, std::time(nullptr));
  for (int i = 0; i < kNamesMax; ++i) {
    *path = fmt::format("{}{}.json", base, i == 0 ? "" : fmt::format("_{}", i));
    const int fd = open(path->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

absl::Status WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno != EINTR) return Unavailable("{}", strerror(errno));
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

size_t MostExperts(const ModelConfig& model) {
  int most = 0;
  for (size_t l = 0; l < model.layers.size(); ++l) most = std::max(most, ExpertsOf(model, l));
  return static_cast<size_t>(most);
}

}  // namespace

ExpertStats::ExpertStats(const ModelConfig& model, Placement placement,
                         proto::RecorderOptions options)
    : model_(model),
      options_(std::move(options)),
      experts_(MostExperts(model)),
      initial_(std::move(placement)),
      placement_(initial_) {}

ExpertStats::Recording ExpertStats::NewRecording() const {
  Recording recording;
  if (!keeps_passes()) recording.sums.resize(model_.layers.size() * experts_);
  return recording;
}

void ExpertStats::OnStep(const proto::StepResult& result) {
  if (!result.error().empty() || result.expert_counts().empty()) return;
  std::lock_guard lock(mutex_);
  BeginStep(result);
  std::vector<uint32_t>* pass = nullptr;
  if (recording_now_) {
    ++recording_.passes;
    if (keeps_passes()) {
      if (static_cast<int>(recording_.per_pass.size()) == options_.buffer_size())
        recording_.per_pass.pop_front();
      pass = &recording_.per_pass.emplace_back(model_.layers.size() * experts_);
    }
  }
  for (const proto::LayerExpertCounts& layer : result.expert_counts()) {
    const auto l = static_cast<size_t>(layer.layer());
    if (layer.layer() < 0 || l >= model_.layers.size() ||
        layer.counts_size() != ExpertsOf(model_, l))
      continue;
    ExpertUse use;
    for (uint32_t count : layer.counts()) use.misses += count;
    for (int e : placement_.device[l]) use.hits += layer.counts(e);
    use.misses -= use.hits;
    use_ = {use_.hits + use.hits, use_.misses + use.misses};
    if (!recording_now_) continue;
    recording_.use = {recording_.use.hits + use.hits, recording_.use.misses + use.misses};
    for (size_t e = 0; e < static_cast<size_t>(layer.counts_size()); ++e) {
      const uint32_t count = layer.counts(static_cast<int>(e));
      if (pass != nullptr) {
        (*pass)[l * experts_ + e] = count;
      } else {
        recording_.sums[l * experts_ + e] += count;
      }
    }
  }
  EndStep(result);
}

// Workers that were attached again begin with the placement at start, version 1.
void ExpertStats::BeginStep(const proto::StepResult& result) {
  const uint64_t before = result.placement_version() - (result.residents().empty() ? 0 : 1);
  if (before == initial_.version) placement_ = initial_;
}

void ExpertStats::EndStep(const proto::StepResult& result) {
  for (const proto::LayerResidents& r : result.residents()) {
    const auto l = static_cast<size_t>(r.layer());
    if (r.layer() < 0 || l >= model_.layers.size()) continue;
    const auto known = [&](int e) { return e >= 0 && e < ExpertsOf(model_, l); };
    if (std::all_of(r.experts().begin(), r.experts().end(), known))
      placement_.device[l].assign(r.experts().begin(), r.experts().end());
  }
  if (!result.residents().empty()) placement_.version = result.placement_version();
}

ExpertUse ExpertStats::use() const {
  std::lock_guard lock(mutex_);
  return use_;
}

void ExpertStats::StartRecord() {
  std::lock_guard lock(mutex_);
  recording_ = NewRecording();
  recording_now_ = true;
}

void ExpertStats::StopRecord() {
  std::lock_guard lock(mutex_);
  recording_now_ = false;
}

absl::StatusOr<std::string> ExpertStats::DumpRecord() {
  Recording recording;
  Placement placement;
  {
    std::lock_guard lock(mutex_);
    if (recording_.passes == 0) {
      return FailedPrecondition(
          "no step has been recorded; call /start_expert_distribution_record and send requests "
          "first");
    }
    recording = std::exchange(recording_, NewRecording());
    placement = placement_;
  }
  std::string path;
  const int fd = CreateFile(options_.directory(), &path);
  if (fd < 0) {
    return Unavailable("{}: cannot be written: {}; see --expert-distribution-recorder-dir", path,
                       strerror(errno));
  }
  const absl::Status written = WriteAll(fd, Json(recording, placement));
  close(fd);
  if (written.ok()) return path;
  unlink(path.c_str());
  return Annotate(written, path);
}

std::string ExpertStats::Json(const Recording& recording, const Placement& placement) const {
  std::string out = fmt::format(
      "{{\"format\": \"kt-expert-counts\", \"version\": 1, \"model_type\": {}, \"mode\": \"{}\",\n"
      "\"passes\": {}, \"hits\": {}, \"misses\": {}, \"placement_version\": {},\n\"residents\": [",
      DumpJson(model_.model_type), options_.mode(), recording.passes, recording.use.hits,
      recording.use.misses, placement.version);
  for (size_t l = 0; l < placement.device.size(); ++l) {
    fmt::format_to(std::back_inserter(out), "{}[{}]", l == 0 ? "\n" : ",\n",
                   fmt::join(placement.device[l], ","));
  }
  out += "],\n\"logical_count\": [";
  if (keeps_passes()) {
    for (size_t p = 0; p < recording.per_pass.size(); ++p) {
      out += p == 0 ? "\n[" : ",\n[";
      AppendLayers(recording.per_pass[p], experts_, &out);
      out += "]";
    }
  } else {
    AppendLayers(recording.sums, experts_, &out);
  }
  out += "]}\n";
  return out;
}

}  // namespace kt
