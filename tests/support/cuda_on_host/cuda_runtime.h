#pragma once

// CUDA's runtime for tests: kernels are compiled as C++ and run on the host, block after block. The threads of a block take
// turns at their barriers, so index arithmetic, barriers and exchanges within a warp are what they are on a device; the
// timing is not, and a race shows only where the order of the threads matters (`reversed`).
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __shared__ static  // one block at a time

struct dim3 {
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  unsigned x, y, z;
};
struct __attribute__((aligned(16), may_alias)) uint4 {
  unsigned x, y, z, w;
};
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration };
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace bellows::test {

/// The threads of one block, each with a stack of its own.
class CudaBlock {
 public:
  static inline CudaBlock* current = nullptr;
  static inline bool reversed = false;  ///< the last thread begins
  static constexpr unsigned warp = 32;

  explicit CudaBlock(dim3 size) : size_(size), threads_(size.x * size.y * size.z) {
    while (stacks.size() < threads_.size()) stacks.push_back(std::make_unique_for_overwrite<char[]>(stack_bytes));
  }

  /// Runs body() for each of them.
  void run(const std::function<void()>& body) {
    current = this;
    body_ = &body;
    for (unsigned i = 0; i < threads_.size(); ++i) start(i);
    for (bool all = false; !all;) {
      progress_ = false;
      all = true;
      for (unsigned k = 0; k < threads_.size(); ++k) {
        const unsigned i = reversed ? static_cast<unsigned>(threads_.size()) - 1 - k : k;
        if (threads_[i].done) continue;
        enter(i);
        all = all && threads_[i].done;
      }
      if (!all && !progress_) throw std::logic_error("CudaBlock: threads wait for each other: not all reach a barrier");
    }
  }

  void wait_for_block() { wait(block_, static_cast<unsigned>(threads_.size())); }
  void wait_for_warp() { wait(warps_[running_ / warp], warp); }
  /// One wait: whoever comes to the next exchange writes elsewhere, and by the one after it all have read.
  unsigned exchange(unsigned value, unsigned mask) {
    unsigned* const words = words_[threads_[running_].exchanges++ % 2];
    words[running_] = value;
    wait_for_warp();
    return words[running_ ^ mask];
  }

 private:
  struct Thread {
    ucontext_t context;
    bool done = false;
    unsigned exchanges = 0;
  };
  struct Barrier {
    unsigned arrived = 0, generation = 0;
  };
  static constexpr size_t stack_bytes = 64 << 10;
  static inline std::vector<std::unique_ptr<char[]>> stacks;  ///< kept from launch to launch

  void start(unsigned i) {
    threads_[i].done = false;
    threads_[i].exchanges = 0;
    getcontext(&threads_[i].context);
    threads_[i].context.uc_stack.ss_sp = stacks[i].get();
    threads_[i].context.uc_stack.ss_size = stack_bytes;
    threads_[i].context.uc_link = &scheduler_;
    makecontext(
        &threads_[i].context, [] { current->thread_body(); }, 0);
  }
  void thread_body() {
    (*body_)();
    threads_[running_].done = progress_ = true;
  }
  void enter(unsigned i) {
    running_ = i;
    threadIdx = {i % size_.x, i / size_.x % size_.y, i / size_.x / size_.y};
    swapcontext(&scheduler_, &threads_[i].context);
  }
  void wait(Barrier& barrier, unsigned all) {
    const unsigned generation = barrier.generation;
    progress_ = true;
    if (++barrier.arrived == all) {
      barrier = {0, generation + 1};
      return;
    }
    while (barrier.generation == generation) swapcontext(&threads_[running_].context, &scheduler_);
  }

  dim3 size_;
  std::vector<Thread> threads_;
  ucontext_t scheduler_;
  const std::function<void()>* body_ = nullptr;
  Barrier block_, warps_[32];
  unsigned words_[2][1024] = {};
  unsigned running_ = 0;
  bool progress_ = false;
};

}  // namespace bellows::test

inline void __syncthreads() {
  bellows::test::CudaBlock::current->wait_for_block();
}
inline unsigned __shfl_xor_sync(unsigned, unsigned value, int mask) {
  return bellows::test::CudaBlock::current->exchange(value, static_cast<unsigned>(mask));
}
inline void __stwb(uint4* to, uint4 value) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(uint4) != 0) throw std::logic_error("__stwb: misaligned");
  *to = value;
}
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t) {
  return "invalid configuration";
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  const dim3 blocks = config->gridDim, threads = config->blockDim;
  const unsigned all = threads.x * threads.y * threads.z;
  const bool valid =
      blocks.x > 0 && blocks.x <= INT32_MAX && blocks.y > 0 && blocks.y <= 65535 && all > 0 && all <= 1024;
  if (!valid) return cudaErrorInvalidConfiguration;
  gridDim = blocks;
  blockDim = threads;
  bellows::test::CudaBlock block(threads);
  for (unsigned y = 0; y < blocks.y; ++y) {
    for (unsigned x = 0; x < blocks.x; ++x) {
      blockIdx = {x, y};
      block.run([&] { kernel(arguments...); });
    }
  }
  return cudaSuccess;
}
