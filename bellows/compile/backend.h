#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "bellows/graph/passes/pass.h"
#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

struct BackendOptions {
  bool exact = false;                         ///< only passes that leave every bit as it is, and no generated code
  std::vector<at::Tensor> frozen{};           ///< keep their values: what depends on them only is computed once
  std::optional<c10::ScalarType> autocast{};  ///< as CompileOptions
};

/// Runs programs on a CPU: functional form, passes, groups, generated kernels, and a ProgramRunner for the rest. A program runs as it came
/// until all of that is ready; it is made by a thread of the back end, and put in its place between two calls. A program for which the system
/// gives no thread, and one that was being made when the process forked, stays as it came; a warning is logged once.
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

  struct Queue;

  /// The queue of this process: a child of fork() begins with an empty one.
  Queue& own_queue() const;
  /// Throws: c10::Error if the system gives no thread; nothing is queued then
  void enqueue(Job job);
  void work(const std::stop_token& stop);
  void make_first(const std::stop_token& stop);
  void make(Job& job, const std::stop_token& stop);

  const BackendOptions options_;
  const std::vector<graph::Pass> passes_;
  mutable std::unique_ptr<Queue> queue_;  ///< last: its thread ends before what it uses
};

}  // namespace bellows::compile_detail
