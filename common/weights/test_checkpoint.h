// SPDX-License-Identifier: Apache-2.0
// For tests: checkpoints in memory that can be bent before they are written.
#ifndef KT_COMMON_WEIGHTS_TEST_CHECKPOINT_H_
#define KT_COMMON_WEIGHTS_TEST_CHECKPOINT_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/base/status.h"
#include "common/weights/stored_model.h"

namespace kt {

// The bytes of a safetensors file with this header and data; the header need not be sound.
inline std::string ShardBytes(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out + header + data;
}

struct TestTensor {
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;
  std::string data;
};
using TestTensors = std::map<std::string, TestTensor>;

inline std::string ShardBytes(const TestTensors& tensors) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, t] : tensors) {
    header[name] = {{"dtype", std::string(DTypeName(t.dtype))},
                    {"shape", t.shape},
                    {"data_offsets", {data.size(), data.size() + t.data.size()}}};
    data += t.data;
  }
  return ShardBytes(header.dump(), data);
}

inline TestTensors TensorsOf(const std::string& dir) {
  TestTensors out;
  auto checkpoint = Checkpoint::Open(dir).value();
  for (const auto& [name, t] : checkpoint->tensors()) {
    out[name] = {t.dtype, t.shape,
                 std::string(reinterpret_cast<const char*>(t.data.data()), t.data.size())};
  }
  return out;
}

// A directory of this test alone, removed with the object.
class TestDir {
 public:
  TestDir()
      : path_(std::filesystem::path(::testing::TempDir()) /
              fmt::format("kt_checkpoint_{}_{}", getpid(), made_++)) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TestDir() { std::filesystem::remove_all(path_); }
  TestDir(const TestDir&) = delete;
  TestDir& operator=(const TestDir&) = delete;
  std::string path() const { return path_.string(); }
  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }

 private:
  static inline int made_ = 0;
  std::filesystem::path path_;
};

// A checkpoint that a test bends. Check() writes it and gives what opening it and resolving it with
// its config says, "fits" if nothing is wrong. `dir` holds what was written last.
class BentCheckpoint {
 public:
  BentCheckpoint(TestTensors tensors, Json config)
      : tensors(std::move(tensors)), config(std::move(config)) {}
  explicit BentCheckpoint(const std::string& model_dir)
      : BentCheckpoint(TensorsOf(model_dir), ReadJsonFile(model_dir + "/config.json").value()) {}

  std::string Check(StoredParts parts = StoredParts::kAll) const {
    dir.Write("model.safetensors", ShardBytes(tensors));
    return CheckFiles(parts);
  }

  // The same in two shards and an index; experts are in the second.
  std::string CheckSharded(
      const std::function<void(TestTensors&, TestTensors&, Json&)>& bend) const {
    TestTensors first, second;
    Json map = Json::object();
    for (const auto& [name, tensor] : tensors) {
      bool expert = name.find(".experts.") != std::string::npos;
      (expert ? second : first)[name] = tensor;
      map[name] = expert ? "b.safetensors" : "a.safetensors";
    }
    bend(first, second, map);
    dir.Write("a.safetensors", ShardBytes(first));
    if (!second.empty()) dir.Write("b.safetensors", ShardBytes(second));
    dir.Write("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
    return CheckFiles();
  }

  std::string CheckFiles(StoredParts parts = StoredParts::kAll) const {
    auto model = ParseModelConfig(config, Json::object());
    if (!model.ok()) return Message(model.status());
    auto checkpoint = Checkpoint::Open(dir.path());
    if (!checkpoint.ok()) return Message(checkpoint.status());
    auto stored = ResolveWeights(*model, **checkpoint, parts);
    return stored.ok() ? "fits" : Message(stored.status());
  }

  TestDir dir;
  TestTensors tensors;
  Json config;
};

}  // namespace kt

#endif  // KT_COMMON_WEIGHTS_TEST_CHECKPOINT_H_
