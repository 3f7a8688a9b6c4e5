#include "bellows/kernels/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>

// at::parallel_for is a template that runs serially if the source is compiled without OpenMP, and code for OpenMP
// depends on the compiler. This entry point of libgomp, which Intel's and LLVM's libraries also provide, uses the same
// threads as libtorch, whichever compiler is used.
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);

namespace bellows::kernels {

namespace {

struct Work {
  int64_t count;
  const std::function<void(int64_t)>& body;
  std::atomic<int64_t> next = 0;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error = nullptr;

  void take_chunks() {
    try {
      for (int64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
      next = count;
    }
  }
};

}  // namespace

void parallel_chunks(int64_t count, const std::function<void(int64_t)>& body) {
  if (count <= 1 || at::get_num_threads() <= 1 || at::in_parallel_region()) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  Work work{.count = count, .body = body};
  GOMP_parallel([](void* data) { static_cast<Work*>(data)->take_chunks(); }, &work, 0, 0);
  if (work.error) std::rethrow_exception(work.error);
}

void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t ranges = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, at::get_num_threads());
  parallel_chunks(ranges, [&](int64_t i) { body(count * i / ranges, count * (i + 1) / ranges); });
}

}  // namespace bellows::kernels
