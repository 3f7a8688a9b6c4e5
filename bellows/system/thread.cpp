#include "bellows/system/thread.h"

#include <c10/util/Exception.h>

#include <latch>
#include <vector>

#include "bellows/core/error.h"

namespace bellows {

std::string no_thread_message(const std::system_error& error) {
  return "cannot start a thread: " + errno_message(error.code().value()) +
         ". The process has reached its limit of threads (ulimit -u, or pids.max of its cgroup) or of memory (ulimit "
         "-v). "
         "Raise the limit, or use fewer threads.";
}

void throw_no_thread(std::string_view purpose, const std::system_error& error) {
  TORCH_CHECK(false, purpose, ": ", no_thread_message(error));
}

void check_threads(int count) {
  std::latch end(1);
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<size_t>(count));
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([&end] { end.wait(); });
  } catch (const std::system_error& error) {
    end.count_down();
    throw_no_thread(c10::str("thread ", threads.size() + 1, " of ", count), error);
  }
  end.count_down();
}

}  // namespace bellows
