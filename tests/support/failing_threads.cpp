#include "tests/support/failing_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

namespace {

std::atomic<bool> fails{false};
std::atomic<int> refusals{0};

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*),
                              void* argument) {
  if (fails) {
    ++refusals;
    return EAGAIN;
  }
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, function, argument);
}
#endif

namespace bellows::test {

FailThreads::FailThreads() {
  refusals = 0;
  fails = true;
}
FailThreads::~FailThreads() {
  fails = false;
}

int FailThreads::refused() const {
  return refusals;
}

bool can_fail_threads() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return true;
#endif
}

}  // namespace bellows::test
