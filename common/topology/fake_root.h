// SPDX-License-Identifier: Apache-2.0
// For tests: a temporary folder that stands for the root of a machine's /proc and /sys.
#ifndef KT_COMMON_TOPOLOGY_FAKE_ROOT_H_
#define KT_COMMON_TOPOLOGY_FAKE_ROOT_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace kt::topology {

class FakeRoot {
 public:
  FakeRoot() : path_(testing::TempDir() + "kt_root_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << path_;
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& file, const std::string& text) const {
    const std::filesystem::path target = path_ + file;
    std::filesystem::create_directories(target.parent_path());
    std::ofstream(target, std::ios::binary) << text;
  }

 private:
  std::string path_;
};

}  // namespace kt::topology

#endif  // KT_COMMON_TOPOLOGY_FAKE_ROOT_H_
