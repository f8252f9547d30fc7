// SPDX-License-Identifier: Apache-2.0
// A real kt-node with small shell scripts as its processes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "common/base/json.h"
#include "common/base/status.h"
#include "common/ipc/fd_passing.h"
#include "common/ipc/node_client.h"
#include "node/listen_socket.h"
#include "node/spec.h"

namespace kt {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr char kServe[] =
    "trap 'exit 0' TERM; echo READY >&$KT_READY_FD; while :; do sleep 0.05; done";
constexpr char kWork[] = "while :; do sleep 0.05; done";
constexpr std::chrono::seconds kPatience{20};  // an upper bound for failures, not a wait

bool Eventually(const std::function<bool()>& condition) {
  auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    poll(nullptr, 0, 10);
  }
  return true;
}

bool Exists(pid_t pid) {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string id, name, state;
  return stat >> id >> name >> state && state != "Z";
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

ProcessSpec Script(const std::string& name, const std::string& script) {
  return ProcessSpec{name, {"/bin/bash", "-c", script}};
}

class NodeProcessTest : public ::testing::Test {
 protected:
  NodeProcessTest() {
    char folder[] = "/tmp/kt-node-test-XXXXXX";
    base_ = mkdtemp(folder);
    runtime_dir_ = base_ + "/run";
    std::filesystem::create_directory(runtime_dir_);
    spec_.listen_host = "127.0.0.1";
    spec_.ready_text = "http://{address}/v1 model=m";
    ProcessSpec server = Script("server", kServe);
    server.reports_ready = server.inherits_listener = server.critical = true;
    ProcessSpec worker = Script("worker", kWork);
    worker.stop_order = 1;
    spec_.processes = {server, worker};
  }
  ~NodeProcessTest() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    std::filesystem::remove_all(base_);
  }

  void StartNode() {
    std::string spec_path = runtime_dir_ + "/node.json";
    std::ofstream(spec_path) << DumpJson(NodeSpecToJson(spec_));
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // should the test be killed
    int log = open(log_path().c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(log, STDERR_FILENO);
    std::string program = KT_BINARY_DIR "/bin/kt-node";
    execl(program.c_str(), "kt-node", "--spec", spec_path.c_str(), nullptr);
    _exit(99);
  }
  void StartNodeAndWaitUntilReady() {
    StartNode();
    ASSERT_TRUE(Eventually([&] { return Log().find("\nready: ") != std::string::npos; })) << Log();
  }
  int WaitForEnd() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  std::string log_path() const { return base_ + "/log"; }
  std::string Log() const { return ReadFile(log_path()); }
  absl::StatusOr<NodeClient> Connect() { return NodeClient::Connect(runtime_dir_ + "/node.sock"); }
  Json Process(size_t index) {
    absl::StatusOr<NodeClient> client = Connect();
    if (!client.ok()) return {};
    absl::StatusOr<std::string> text = client->ProcessesJson();
    return text.ok() ? ParseJson(*text).value()["processes"][index] : Json();
  }
  pid_t PidOf(size_t index) { return Process(index).value("pid", 0); }

  std::string base_;
  std::string runtime_dir_;
  NodeSpec spec_;
  pid_t pid_ = 0;
};

TEST_F(NodeProcessTest, ReadyLineThenSigtermLeavesNothing) {
  StartNodeAndWaitUntilReady();
  pid_t server = PidOf(0), worker = PidOf(1);
  EXPECT_TRUE(Exists(server) && Exists(worker));
  std::string log = Log();
  EXPECT_THAT(log, HasSubstr(fmt::format("model=m pid={} in ", pid_)));
  EXPECT_EQ(log.find("ready: "), log.rfind("ready: "));
  kill(pid_, SIGTERM);
  EXPECT_EQ(WaitForEnd(), 0) << Log();
  EXPECT_FALSE(Exists(server) || Exists(worker));
  EXPECT_FALSE(std::filesystem::exists(runtime_dir_));
}

TEST_F(NodeProcessTest, CtrlCEndsWithItsOwnCode) {
  StartNodeAndWaitUntilReady();
  kill(pid_, SIGINT);
  EXPECT_EQ(WaitForEnd(), 130);
}

TEST_F(NodeProcessTest, SecondSignalKillsAProcessThatIgnoresTheFirst) {
  spec_.processes[0].argv[2] =
      "trap '' TERM; echo READY >&$KT_READY_FD; while :; do sleep 0.05; done";
  spec_.processes[0].stop_timeout_ms = 600000;
  StartNodeAndWaitUntilReady();
  kill(pid_, SIGTERM);
  ASSERT_TRUE(Eventually([&] { return Log().find("stopping") != std::string::npos; }));
  kill(pid_, SIGTERM);
  EXPECT_EQ(WaitForEnd(), 130);
}

TEST_F(NodeProcessTest, KilledChildIsRestartedWithAHigherIncarnation) {
  StartNodeAndWaitUntilReady();
  Json before = Process(1);
  kill(before.value("pid", 0), SIGKILL);
  ASSERT_TRUE(Eventually([&] {
    Json after = Process(1);
    return after.value("state", "") == "running" && after.value("pid", 0) != before.value("pid", 0);
  })) << Log();
  Json after = Process(1);
  EXPECT_EQ(after.value("restarts", 0), 1);
  EXPECT_GT(after.value("incarnation", uint64_t{0}), before.value("incarnation", uint64_t{0}));
  EXPECT_EQ(after.value("last_exit", ""), "signal 9 (Killed)");
}

TEST_F(NodeProcessTest, KillOnRequest) {
  StartNodeAndWaitUntilReady();
  absl::StatusOr<NodeClient> client = Connect();
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(client->KillProcess("nobody").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(client->KillProcess("worker").ok());
  EXPECT_TRUE(Eventually([&] { return Process(1).value("restarts", 0) == 1; }));
}

TEST_F(NodeProcessTest, GrandchildrenDieWithTheirParentsGroupAndWithTheRun) {
  std::string grandchild = base_ + "/grandchild", stray = base_ + "/stray";
  spec_.processes[1].argv[2] = fmt::format(
      "sleep 1000 & echo $! > {0}; setsid sleep 1000 & echo $! > {1}.new; mv {1}.new {1}; {2}",
      grandchild, stray, kWork);
  StartNodeAndWaitUntilReady();
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(stray); }));
  pid_t grandchild_pid = std::stoi(ReadFile(grandchild)), stray_pid = std::stoi(ReadFile(stray));
  ASSERT_TRUE(Exists(grandchild_pid) && Exists(stray_pid));
  kill(PidOf(1), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !Exists(grandchild_pid); }));
  kill(pid_, SIGTERM);
  EXPECT_EQ(WaitForEnd(), 0);
  EXPECT_FALSE(Exists(stray_pid)) << "it left its group, but not our tree";
}

TEST_F(NodeProcessTest, ChildrenDieWithAKilledNode) {
  StartNodeAndWaitUntilReady();
  pid_t server = PidOf(0), worker = PidOf(1);
  kill(pid_, SIGKILL);
  WaitForEnd();
  EXPECT_TRUE(Eventually([&] { return !Exists(server) && !Exists(worker); }));
}

TEST_F(NodeProcessTest, FailureBeforeReadinessGivesItsCodeAndSentenceLast) {
  spec_.processes[1].argv[2] =
      "echo -n 'config.json: hidden_size is missing' >&$KT_ERROR_FD; exit 3";
  spec_.processes[0].argv[2] = kWork;
  StartNode();
  EXPECT_EQ(WaitForEnd(), 3);
  EXPECT_THAT(Log(), EndsWith("config.json: hidden_size is missing\n"));
  EXPECT_FALSE(std::filesystem::exists(runtime_dir_));
}

TEST_F(NodeProcessTest, MissingProgramIsNamed) {
  spec_.processes[0].argv[2] = kWork;  // a real server is not ready before its workers
  spec_.processes[1].argv = {"/nonexistent/kt-worker"};
  StartNode();
  EXPECT_EQ(WaitForEnd(), 1);
  EXPECT_THAT(Log(), EndsWith("cannot start /nonexistent/kt-worker: No such file or directory\n"));
}

TEST_F(NodeProcessTest, BusyPort) {
  absl::StatusOr<ListenSocket> taken = OpenListenSocket("127.0.0.1", 0);
  ASSERT_TRUE(taken.ok());
  spec_.listen_port = std::stoi(taken->address.substr(taken->address.rfind(':') + 1));
  StartNode();
  EXPECT_EQ(WaitForEnd(), 4);
  EXPECT_THAT(Log(), HasSubstr(fmt::format("port {} of 127.0.0.1 is in use", spec_.listen_port)));
  EXPECT_FALSE(std::filesystem::exists(runtime_dir_));
}

TEST_F(NodeProcessTest, ListeningSocketSurvivesItsUser) {
  StartNodeAndWaitUntilReady();
  Json info = ParseJson(Connect()->ProcessesJson().value()).value();
  std::string address = info["address"];
  kill(PidOf(0), SIGKILL);
  ASSERT_TRUE(Eventually([&] { return Process(0).value("restarts", 0) == 1; }));
  std::string port = address.substr(address.rfind(':') + 1);
  EXPECT_EQ(system(fmt::format("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{}'", port).c_str()), 0);
}

TEST_F(NodeProcessTest, EmulatorPrefixIsPutBeforeEveryCommand) {
  setenv("KT_EXEC_PREFIX", "/usr/bin/env KT_PREFIXED=yes", 1);
  std::string mark = base_ + "/mark";
  spec_.processes[1].argv[2] =
      fmt::format("echo $KT_PREFIXED > {0}.new; mv {0}.new {0}; {1}", mark, kWork);
  StartNodeAndWaitUntilReady();
  unsetenv("KT_EXEC_PREFIX");
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(mark); }));
  EXPECT_EQ(ReadFile(mark), "yes\n");
}

TEST_F(NodeProcessTest, TwoClientsShareOneSegment) {
  StartNodeAndWaitUntilReady();
  absl::StatusOr<NodeClient> a = Connect(), b = Connect();
  ASSERT_TRUE(a.ok() && b.ok());
  absl::StatusOr<Segment> first = a->GetSegment("ring", 10000),
                          second = b->GetSegment("ring", 10000);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(first->size(), 12288u);
  first->data()[9999] = 77;
  EXPECT_EQ(second->data()[9999], 77);
  EXPECT_EQ(*a->SegmentsJson(), R"({"segments":[{"name":"ring","bytes":12288}]})");
  EXPECT_EQ(ftruncate(second->fd(), 0), -1) << "sealed";
  struct stat st {};
  fstat(first->fd(), &st);
  EXPECT_GE(st.st_blocks * 512, 12288) << "allocated before use";

  ASSERT_TRUE(b->DropSegment("ring").ok());
  EXPECT_EQ(b->DropSegment("ring").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(second->data()[9999], 77) << "who maps it keeps it";
  absl::StatusOr<Segment> fresh = a->GetSegment("ring", 4096);
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(fresh->data()[0], 0);
}

TEST_F(NodeProcessTest, AGivenSegmentIsThereAsLongAsItsGiver) {
  StartNodeAndWaitUntilReady();
  absl::StatusOr<NodeClient> giver = Connect(), other = Connect();
  ASSERT_TRUE(giver.ok() && other.ok());
  absl::StatusOr<Segment> given = Segment::Create("weights", 4096);
  ASSERT_TRUE(given.ok());
  given->data()[5] = 42;
  EXPECT_EQ(other->OpenSegment("weights").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(giver->PutSegment("weights", *given).ok());
  EXPECT_EQ(other->PutSegment("weights", *given).code(), absl::StatusCode::kAlreadyExists);
  absl::StatusOr<Segment> opened = other->OpenSegment("weights");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->data()[5], 42);

  { NodeClient gone = *std::move(giver); }
  while (other->OpenSegment("weights").ok()) std::this_thread::yield();  // until the node sees it
  EXPECT_EQ(opened->data()[5], 42) << "who maps it keeps it";
}

TEST_F(NodeProcessTest, OversizeAndMisnamedSegmentsAreRefused) {
  StartNodeAndWaitUntilReady();
  absl::StatusOr<NodeClient> client = Connect();
  ASSERT_TRUE(client.ok());
  absl::Status huge = client->GetSegment("huge", size_t{1} << 45).status();
  EXPECT_EQ(huge.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(huge), HasSubstr("35184372088832 bytes"));
  EXPECT_EQ(client->GetSegment("../x", 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->GetSegment(std::string(500, 'x'), 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(client->GetSegment("small", 1).ok()) << "the connection goes on";
}

TEST_F(NodeProcessTest, GarbageClosesOnlyItsOwnConnection) {
  StartNodeAndWaitUntilReady();
  absl::StatusOr<NodeClient> client = Connect();
  NodeRequest wrong_version;
  wrong_version.version = 99;
  NodeRequest endless_name;
  std::memset(endless_name.name, 'x', sizeof(endless_name.name));
  auto bytes = [](const NodeRequest& r) {
    return std::string(reinterpret_cast<const char*>(&r), sizeof(r));
  };
  for (const std::string& garbage : {std::string("hello"), std::string(100000, 'z'),
                                     bytes(wrong_version), bytes(endless_name)}) {
    absl::StatusOr<UniqueFd> socket = ConnectToPath(runtime_dir_ + "/node.sock");
    ASSERT_TRUE(socket.ok());
    ASSERT_TRUE(SendPacket(socket->get(), garbage, STDIN_FILENO).ok());
    EXPECT_EQ(ReceivePacket(socket->get(), 100).status().code(), absl::StatusCode::kUnavailable)
        << "closed without an answer";
  }
  EXPECT_TRUE(client->ProcessesJson().ok());
}

}  // namespace
}  // namespace kt
