// SPDX-License-Identifier: Apache-2.0
#include "cli/runtime_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "common/ipc/fd_passing.h"

namespace kt::cli {
namespace {

using ::testing::Contains;
using ::testing::Not;
using ::testing::StartsWith;

class RuntimeDirTest : public ::testing::Test {
 protected:
  RuntimeDirTest() {
    char folder[] = "/tmp/kt-test-XXXXXX";
    base_ = mkdtemp(folder);
    setenv("XDG_RUNTIME_DIR", base_.c_str(), 1);
  }
  ~RuntimeDirTest() override {
    unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(base_);
  }
  std::string base_;
};

TEST_F(RuntimeDirTest, IsPrivateAndShort) {
  absl::StatusOr<std::string> path = CreateRuntimeDir();
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, StartsWith(base_ + "/kt-"));
  EXPECT_LE(path->size(), 80u);
  struct stat st {};
  ASSERT_EQ(stat(path->c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700u);
}

TEST_F(RuntimeDirTest, LongOrUnusablePlacesFallBackToTmp) {
  for (const std::string& place :
       {base_ + "/" + std::string(90, 'x'), std::string("relative"), std::string("/nonexistent")}) {
    if (place[0] == '/' && place.size() > 20) std::filesystem::create_directory(place);
    setenv("XDG_RUNTIME_DIR", place.c_str(), 1);
    absl::StatusOr<std::string> path = CreateRuntimeDir();
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_THAT(*path, StartsWith("/tmp/kt-"));
    std::filesystem::remove(*path);
  }
}

TEST_F(RuntimeDirTest, OnlyDeadRunsAreRemoved) {
  std::string fresh = *CreateRuntimeDir(), live = *CreateRuntimeDir(), dead = *CreateRuntimeDir();
  absl::StatusOr<UniqueFd> socket = ListenAtPath(live + "/node.sock");
  ASSERT_TRUE(socket.ok());
  ASSERT_TRUE(ListenAtPath(dead + "/node.sock").ok());  // closed at once; its file stays
  EXPECT_THAT(FindRuntimeDirs(), Contains(live));
  EXPECT_THAT(FindRuntimeDirs(), Not(Contains(fresh)));
  RemoveDeadRuntimeDirs();
  EXPECT_TRUE(std::filesystem::exists(fresh)) << "its node is still to come";
  EXPECT_TRUE(std::filesystem::exists(live));
  EXPECT_FALSE(std::filesystem::exists(dead));
}

}  // namespace
}  // namespace kt::cli
