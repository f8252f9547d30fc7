// SPDX-License-Identifier: Apache-2.0
#include "common/weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/status.h"

namespace kt {
namespace {

absl::StatusOr<std::span<const uint8_t>> Map(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return Internal("{}: fstat failed: {}", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("{}: is not a regular file", path);
  if (info.st_size == 0) return std::span<const uint8_t>();
  size_t size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return ResourceExhausted("{}: cannot map {} bytes: {}", path, size, std::strerror(errno));
  }
  return std::span<const uint8_t>(static_cast<const uint8_t*>(data), size);
}

}  // namespace

absl::StatusOr<std::shared_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  // Without O_NONBLOCK opening a FIFO would wait for a writer.
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return NotFound("{}: no such file", path);
  if (fd < 0) return PermissionDenied("{}: cannot be opened: {}", path, std::strerror(errno));
  auto bytes = Map(fd, path);
  close(fd);
  if (!bytes.ok()) return bytes.status();
  return std::shared_ptr<MappedFile>(new MappedFile(*bytes));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
}

}  // namespace kt
