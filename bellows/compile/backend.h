#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bellows/compile/kernel_cache.h"
#include "bellows/compile/shared_constants.h"
#include "bellows/graph/pass.h"
#include "bellows/graph/program.h"

namespace bellows::compile_detail {

struct BackendOptions {
  bool exact = false;                         ///< only passes that leave every bit as it is, and no generated code
  std::vector<at::Tensor> frozen{};           ///< keep their values: what depends on them only is computed once
  std::optional<c10::ScalarType> autocast{};  ///< as CompileOptions
};

/// Runs programs on a CPU: functional form, passes, groups, generated kernels, and a ProgramRunner for the rest. A program runs as it came
/// until all of that is ready; it is made by a thread of the back end, and put in its place between two calls.
class CpuBackend : public graph::Backend {
 public:
  explicit CpuBackend(BackendOptions options = {});
  ~CpuBackend() override;

  std::shared_ptr<graph::Executable> prepare(graph::Program program, std::span<const c10::Storage> inputs) override;
  std::string to_text() const override;
  /// Nothing is being made. What is ready is used from the next call on.
  bool ready() const;

 private:
  class Swapped;
  struct Job {
    std::weak_ptr<Swapped> executable;
    graph::Program program;
    std::vector<bool> frozen;          ///< which inputs keep their values
    std::vector<c10::Storage> inputs;  ///< these; others null
    std::vector<c10::Storage> seen;    ///< the same memory as the worker may read it at any time
  };

  void forget_worker_of_parent();
  void work(const std::stop_token& stop);
  void make_first(const std::stop_token& stop);
  void make(Job& job, const std::stop_token& stop);

  const BackendOptions options_;
  const std::vector<graph::Pass> passes_;
  mutable std::mutex mutex_;
  std::deque<Job> jobs_;       ///< the first is the worker's, and being made
  SharedConstants constants_;  ///< the worker's
  std::vector<std::string> reports_;
  int process_ = 0;                       ///< that the worker belongs to
  std::unique_ptr<std::jthread> worker_;  ///< while there are jobs; last: it ends before what it uses
};

}  // namespace bellows::compile_detail
