// SPDX-License-Identifier: Apache-2.0
// For tests: a thread for which the kernel refuses system calls, as older kernels, emulators and
// containers do.
#ifndef KT_COMMON_TOPOLOGY_REFUSED_CALLS_H_
#define KT_COMMON_TOPOLOGY_REFUSED_CALLS_H_

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <thread>
#include <vector>

namespace kt::topology {

struct RefusedCall {
  unsigned number = 0;
  int error = 0;
  int third_argument = -1;  // only with this one; -1: whatever it is
};

// All that asks for huge pages, as before Linux 5.14 and without a setting of the machine.
inline std::vector<RefusedCall> NoHugePages() {
  std::vector<RefusedCall> calls;
  for (int advice : {14 /* HUGEPAGE */, 23 /* POPULATE_WRITE */, 25 /* COLLAPSE */})
    calls.push_back({SYS_madvise, EINVAL, advice});
  return calls;
}

// Runs f on a thread of its own that is refused these calls; threads it starts are, too.
template <typename F>
void WithRefusedCalls(const std::vector<RefusedCall>& calls, F f) {
  std::vector<sock_filter> program;
  for (const RefusedCall& call : calls) {
    const bool argument = call.third_argument >= 0;
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.number, 0,
                               static_cast<uint8_t>(argument ? 3 : 1)));
    if (argument) {
      program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])));
      program.push_back(
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call.third_argument), 0, 1));
    }
    program.push_back(
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(call.error)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  std::thread([&] {
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    f();
  }).join();
}

}  // namespace kt::topology

#endif  // KT_COMMON_TOPOLOGY_REFUSED_CALLS_H_
