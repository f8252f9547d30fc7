// SPDX-License-Identifier: Apache-2.0
#include "common/weights/checkpoint.h"

#include <sys/mman.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "common/base/status.h"
#include "common/weights/mapped_file.h"
#include "common/weights/safetensors.h"

namespace kt {

namespace {
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr size_t kShardsMax = 4096;
}  // namespace

struct CheckpointOpener {
  Checkpoint& checkpoint;

  absl::Status AddShard(const std::string& name) {
    std::string path = fmt::format("{}/{}", checkpoint.dir_, name);
    KT_ASSIGN_OR_RETURN(std::shared_ptr<MappedFile> file, MappedFile::Open(path));
    auto entries = ParseSafetensors(file->bytes());
    if (!entries.ok()) return Annotate(entries.status(), path);
    for (SafetensorsEntry& entry : *entries) {
      checkpoint.bytes_ += static_cast<int64_t>(entry.data.size());
      TensorInfo info = {entry.name, entry.dtype, std::move(entry.shape), path, entry.data};
      auto [it, added] = checkpoint.tensors_.try_emplace(std::move(entry.name), std::move(info));
      if (!added) {
        return InvalidArgument("{}: tensor {} is in {} too", path, Quoted(it->first),
                               it->second.file);
      }
    }
    checkpoint.mappings_.push_back(std::move(file));
    return absl::OkStatus();
  }

  absl::Status AddIndexed(const std::string& index_path, const MappedFile& index) {
    std::string_view text(reinterpret_cast<const char*>(index.bytes().data()),
                          index.bytes().size());
    auto files = ParseSafetensorsIndex(text);
    if (!files.ok()) return Annotate(files.status(), index_path);
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : *files) shards.insert(shard);
    if (shards.size() > kShardsMax) {
      return InvalidArgument("{}: names {} shards, more than the {} allowed", index_path,
                             shards.size(), kShardsMax);
    }
    for (const std::string& shard : shards) {
      absl::Status status = AddShard(shard);
      if (absl::IsNotFound(status))
        return Annotate(status, fmt::format("shard named in {}", index_path));
      KT_RETURN_IF_ERROR(status);
    }
    for (const auto& [tensor, shard] : *files) {
      std::string path = fmt::format("{}/{}", checkpoint.dir_, shard);
      const TensorInfo* info = checkpoint.Find(tensor);
      if (info == nullptr || info->file != path) {
        return InvalidArgument("{}: tensor {} is not there, but {} places it there", path,
                               Quoted(tensor), index_path);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Open() {
    absl::Status single = AddShard(kSingle);
    if (!absl::IsNotFound(single)) return single;
    std::string index_path = fmt::format("{}/{}", checkpoint.dir_, kIndex);
    auto index = MappedFile::Open(index_path);
    if (absl::IsNotFound(index.status())) {
      return NotFound("{}: holds neither {} nor {}", checkpoint.dir_, kSingle, kIndex);
    }
    if (!index.ok()) return index.status();
    return AddIndexed(index_path, **index);
  }
};

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& dir) {
  auto checkpoint = std::make_unique<Checkpoint>();
  checkpoint->dir_ = dir;
  KT_RETURN_IF_ERROR(CheckpointOpener{*checkpoint}.Open());
  return checkpoint;
}

const TensorInfo* Checkpoint::Find(const std::string& name) const {
  auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

void Checkpoint::Release(const uint8_t* data, size_t bytes) const {
  // Whole pages only: the first and the last may hold neighbours.
  uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  uintptr_t end = (begin + bytes) / page * page;
  begin = (begin + page - 1) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace kt
