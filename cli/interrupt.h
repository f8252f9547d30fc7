// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_INTERRUPT_H_
#define KT_CLI_INTERRUPT_H_

#include "common/ipc/unique_fd.h"

namespace kt::cli {

// Ctrl-C as a readable descriptor, so that whoever waits for something can wait for it too.
class Interrupt {
 public:
  Interrupt();
  int fd() const { return fd_.get(); }
  bool pending() const;
  void Trigger();  // async-signal-safe
  void Clear();

 private:
  UniqueFd fd_;
};

// While it lives, SIGINT triggers `interrupt` instead of ending the process. One at a time.
class CatchSigint {
 public:
  explicit CatchSigint(Interrupt& interrupt);
  ~CatchSigint();
  CatchSigint(const CatchSigint&) = delete;
  CatchSigint& operator=(const CatchSigint&) = delete;
};

}  // namespace kt::cli

#endif  // KT_CLI_INTERRUPT_H_
