// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>

namespace kt::cli {
namespace {

std::atomic<Interrupt*> caught{nullptr};

void OnSigint(int) {
  const int saved = errno;
  if (Interrupt* interrupt = caught.load()) interrupt->Trigger();
  errno = saved;
}

void SetHandler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;  // no SA_RESTART: a blocked read of stdin ends
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace

Interrupt::Interrupt() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

bool Interrupt::pending() const {
  pollfd wait{fd_.get(), POLLIN, 0};
  return poll(&wait, 1, 0) > 0;
}

void Interrupt::Trigger() { eventfd_write(fd_.get(), 1); }

void Interrupt::Clear() {
  eventfd_t count;
  eventfd_read(fd_.get(), &count);
}

CatchSigint::CatchSigint(Interrupt& interrupt) {
  caught.store(&interrupt);
  SetHandler(&OnSigint);
}

CatchSigint::~CatchSigint() {
  SetHandler(SIG_DFL);
  caught.store(nullptr);
}

}  // namespace kt::cli
