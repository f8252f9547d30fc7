// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/base/json.h"
#include "common/base/status.h"
#include "common/topology/fake_root.h"
#include "common/topology/refused_calls.h"
#include "node/listen_socket.h"

namespace kt::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using topology::FakeRoot;
using topology::Topology;

Topology Machine(const std::string& name, const std::string& allowed = "") {
  return Topology::Load({KT_SOURCE_DIR "/tests/data/topology/" + name + ".xml", allowed}).value();
}

const Finding* Find(const std::vector<Finding>& findings, const std::string& subject) {
  for (const Finding& f : findings) {
    if (f.subject == subject) return &f;
  }
  return nullptr;
}

// The finding that must be there.
Finding Get(const std::vector<Finding>& findings, const std::string& subject) {
  const Finding* finding = Find(findings, subject);
  if (finding == nullptr)
    ADD_FAILURE() << "no finding '" << subject << "' in\n" << FormatTable(findings, true);
  return finding == nullptr ? Finding{} : *finding;
}

class DoctorTest : public testing::Test {
 protected:
  DoctorTest() {
    root_.Write("/proc/meminfo",
                "MemTotal:       67108864 kB\nMemAvailable:   33554432 kB\nHugePages_Total:       "
                "3\nHugePages_Free:        2\nHugepagesize:       2048 kB\n");
    root_.Write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    root_.Write("/proc/self/cgroup", "0::/box\n");
    root_.Write("/sys/fs/cgroup/box/cpu.max", "max 100000\n");
    root_.Write("/sys/devices/system/cpu/online", "0-15\n");
    root_.Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    root_.Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size [advise] never deny force\n");
    options_.root = root_.path();
    options_.port = FreePort();
  }
  static int FreePort() {
    const auto socket = OpenListenSocket("127.0.0.1", 0);
    return std::stoi(socket->address.substr(socket->address.rfind(':') + 1));
  }
  std::vector<Finding> Run(const Topology& machine) { return Examine(options_, machine); }

  FakeRoot root_;
  DoctorOptions options_;
};

TEST_F(DoctorTest, AHealthyMachineHasNoComplaintAboutCoresAndMemory) {
  const auto findings = Run(Machine("two_nodes_smt"));
  EXPECT_EQ(Get(findings, "usable cores").value, "8 of 8 cores (16 hardware threads)");
  EXPECT_EQ(Get(findings, "usable cores").level, Level::kOk);
  EXPECT_EQ(Get(findings, "default threads").value, "--kt-cpuinfer 7");
  EXPECT_EQ(Get(findings, "NUMA node 1").value, "4 usable cores, 1.0 GiB");
  EXPECT_EQ(Get(findings, "expert workers").value,
            "--kt-threadpool-count 2 (one per NUMA node with cores)");
  EXPECT_EQ(Get(findings, "memory").value, "64.0 GiB in all, 32.0 GiB available");
  EXPECT_EQ(Get(findings, "hugetlb pages").value, "3 reserved of 2048 KiB, 2 free");
  EXPECT_EQ(Get(findings, "shared memory").level, Level::kOk);
  EXPECT_EQ(Get(findings, "allowed CPUs").value, "16 of 16 online");
  EXPECT_EQ(Find(findings, "memory limit"), nullptr);
}

TEST_F(DoctorTest, SaysWhatLimitsTheCores) {
  root_.Write("/sys/fs/cgroup/box/cpu.max", "250000 100000\n");
  root_.Write("/sys/fs/cgroup/box/cpu.stat", "nr_throttled 12\n");
  root_.Write("/sys/fs/cgroup/box/cpuset.cpus.effective", "0-7\n");
  const auto findings = Run(Machine("two_nodes_smt", "0-5"));
  EXPECT_EQ(Get(findings, "usable cores").level, Level::kWarn);
  EXPECT_THAT(
      Get(findings, "usable cores").value,
      AllOf(HasSubstr("2 of 3 cores"), HasSubstr("quota of 2.50 CPUs in"), HasSubstr("cpu.max")));
  EXPECT_THAT(Get(findings, "CPU throttling").value, HasSubstr("12 periods"));
  EXPECT_THAT(Get(findings, "allowed CPUs").value,
              AllOf(HasSubstr("6 of 16 online"), HasSubstr("the cpuset has 8"),
                    HasSubstr("affinity mask")));
}

TEST_F(DoctorTest, MemoryLimitHugePagesAndCpuOnlyNodes) {
  root_.Write("/sys/fs/cgroup/box/memory.max", "1073741824\n");
  root_.Write("/sys/fs/cgroup/box/memory.current", "0\n");
  root_.Write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  root_.Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
              "always within_size advise [never] deny force\n");
  std::vector<Finding> findings;
  topology::WithRefusedCalls(topology::NoHugePages(),
                             [&] { findings = Run(Machine("odd_nodes")); });
  EXPECT_THAT(Get(findings, "memory limit").value, HasSubstr("1.0 GiB in"));
  EXPECT_EQ(Get(findings, "memory").level, Level::kWarn);
  EXPECT_THAT(Get(findings, "huge pages").advice, HasSubstr("echo madvise"));
  const Finding shared = Get(findings, "huge pages, shared");
  if (shared.level == Level::kWarn) {  // or the real kernel gives them unasked
    EXPECT_EQ(shared.value, "a memfd gets 4 KiB pages");
    EXPECT_THAT(shared.advice, HasSubstr("echo advise"));
  }
  EXPECT_EQ(Get(findings, "NUMA node 2").level, Level::kWarn);
  EXPECT_EQ(Get(findings, "NUMA node 4").value, "0 usable cores, 59.6 GiB");
}

TEST_F(DoctorTest, ListsTheKernelRowOfEveryFormatAndFollowsTheForcedOne) {
  setenv("KT_FORCE_ISA", "scalar", 1);
  auto findings = Run(Machine("one_node"));
  EXPECT_EQ(Get(findings, "kernels BF16").value, "scalar");
  EXPECT_EQ(Get(findings, "kernels BF16").level, Level::kWarn);
  setenv("KT_FORCE_ISA", "mmx", 1);
  findings = Run(Machine("one_node"));
  EXPECT_EQ(Get(findings, "kernels").level, Level::kFail);
  EXPECT_THAT(Get(findings, "kernels").value, HasSubstr("mmx"));
  unsetenv("KT_FORCE_ISA");
}

TEST_F(DoctorTest, NamesWhoHoldsThePort) {
  const auto busy = OpenListenSocket("127.0.0.1", 0);
  ASSERT_TRUE(busy.ok());
  options_.port = std::stoi(busy->address.substr(busy->address.rfind(':') + 1));
  options_.root.clear();  // the real /proc
  const auto findings = Run(Machine("one_node"));
  const Finding port = Get(findings, fmt::format("port {}", options_.port));
  EXPECT_EQ(port.level, Level::kFail);
  EXPECT_EQ(port.value, fmt::format("in use by doctor_test (process {})", getpid()));
  options_.host = "192.0.2.1";
  options_.port = FreePort();
  EXPECT_EQ(Get(Run(Machine("one_node")), fmt::format("port {}", options_.port)).level,
            Level::kFail);  // not an address of this machine
}

TEST_F(DoctorTest, DeviceFilesWithoutADriverAreAWarning) {
  root_.Write("/dev/nvidia0", "");
  const auto findings = Run(Machine("one_node"));
  if (Find(findings, "GPU 0") != nullptr) GTEST_SKIP() << "this machine has a driver";
  EXPECT_EQ(Get(findings, "GPUs").level, Level::kWarn);
}

TEST_F(DoctorTest, AMissingModelFails) {
  options_.model_dir = root_.path() + "/no/model";
  const auto findings = Run(Machine("one_node"));
  EXPECT_EQ(Get(findings, "model").level, Level::kFail);
  EXPECT_THAT(Get(findings, "model").value, HasSubstr("config.json"));
}

TEST_F(DoctorTest, PredictsAModelsMemoryAndRefusesUnservedQuantisation) {
  const std::string model = KT_SOURCE_DIR "/tests/data/models/qwen3_moe";
  options_.model_dir = model;
  auto findings = Run(Machine("one_node"));
  EXPECT_EQ(Get(findings, "weights").level, Level::kOk);
  EXPECT_THAT(Get(findings, "model memory").value, HasSubstr("32.0 GiB available"));
  root_.Write("/proc/meminfo", "MemTotal: 64 kB\nMemAvailable: 8 kB\n");
  EXPECT_EQ(Get(Run(Machine("one_node")), "model memory").level, Level::kFail);
  root_.Write("/proc/meminfo",
              "MemTotal: 64 kB\nMemAvailable: 8 kB\nHugePages_Free: 8\nHugepagesize: 2048 kB\n");
  EXPECT_EQ(Get(Run(Machine("one_node")), "model memory").level, Level::kOk);

  std::ifstream file(model + "/config.json");
  Json config = Json::parse(file);
  config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}};
  root_.Write("/model/config.json", config.dump());
  options_.model_dir = root_.path() + "/model";
  findings = Run(Machine("one_node"));
  EXPECT_EQ(Get(findings, "model").level, Level::kFail);
  EXPECT_THAT(Get(findings, "model").value, HasSubstr("awq"));
}

TEST(DoctorFormatTest, TableHidesDetailsAndCountsLevels) {
  const std::vector<Finding> findings = {{Level::kOk, "a", "one", "", true},
                                         {Level::kWarn, "bb", "two", "do this"},
                                         {Level::kFail, "c", "three", ""}};
  EXPECT_EQ(FormatTable(findings, false),
            "warn  bb  two\n          -> do this\nFAIL  c   three\n1 failed, 1 warnings\n");
  EXPECT_THAT(FormatTable(findings, true), HasSubstr("ok    a   one\n"));
  const auto json = ParseJson(FormatJson(findings));
  ASSERT_TRUE(json.ok());
  EXPECT_EQ((*json)["ok"], false);
  EXPECT_EQ((*json)["checks"].size(), 3u);
  EXPECT_EQ((*json)["checks"][1]["advice"], "do this");
}

}  // namespace
}  // namespace kt::cli
