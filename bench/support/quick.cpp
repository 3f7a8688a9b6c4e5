#include "bench/support/quick.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bellows/core/error.h"

namespace bellows::bench {

namespace fs = std::filesystem;

QuickGuard::QuickGuard() {
  set_run_deadline(Deadline(quick_s));
  std::string folder = (fs::temp_directory_path() / "bellows-bench-XXXXXX").string();
  TORCH_CHECK(::mkdtemp(folder.data()), "Cannot create a folder with the pattern ", folder, ".");
  folder_ = folder;
  ::setenv("TMPDIR", folder.c_str(), 1);
  thread_ = std::jthread([this](const std::stop_token& stop) { wait_and_stop(stop); });
}

QuickGuard::~QuickGuard() {
  thread_ = {};
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void QuickGuard::wait_and_stop(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, stop, std::chrono::duration<double>(quick_stop_s), [] { return false; });
  if (stop.stop_requested()) return;
  std::printf("stopped after %.0f s: unfinished rows are skipped (run without --quick)\n", quick_stop_s);
  std::fflush(stdout);
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  std::_Exit(rows_so_far_equal() ? 0 : 1);  // peers end with this process
}

}  // namespace bellows::bench
