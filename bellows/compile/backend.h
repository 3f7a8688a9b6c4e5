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
  bool exact = false;  ///< only passes that keep results bit-identical, and no generated code
  /// Tensors that keep their values; operators that depend only on them are computed once
  std::vector<at::Tensor> frozen{};
  std::optional<c10::ScalarType> autocast{};  ///< as CompileOptions
  bool background = false;                    ///< as CompileOptions
};

/// Runs programs on a CPU: functional form, passes, groups, generated kernels, and a ProgramRunner for everything else.
/// A thread of the back end optimizes each program. prepare() waits for it. With `background`, it does not wait: the
/// recorded program runs unchanged until the optimized one replaces it between two calls. A program stays unchanged if
/// the system cannot start a thread, if optimizing it fails, or, in a child process, if it was being optimized during
/// fork(). In the first two cases, a warning is logged once.
class CpuBackend : public graph::Backend {
 public:
  explicit CpuBackend(BackendOptions options = {});
  ~CpuBackend() override;

  std::shared_ptr<graph::Executable> prepare(graph::Program program, std::span<const c10::Storage> inputs) override;
  std::string to_text() const override;
  /// True if no program is being compiled. Finished programs are used from the next call on.
  bool ready() const;

 private:
  class Swapped;
  struct Job {
    std::weak_ptr<Swapped> executable;
    graph::Program program;
    std::vector<bool> frozen;                   ///< whether each input keeps its values
    std::vector<c10::Storage> inputs;           ///< the inputs that do; others are null
    std::vector<c10::Storage> seen;             ///< the same memory, which the worker may read at any time
    std::stop_source cancel{std::nostopstate};  ///< ends the compilation
  };

  struct Queue;

  /// The queue of this process. A child of fork() starts with an empty one.
  Queue& own_queue() const;
  /// Throws: c10::Error if the system cannot start a thread; then nothing is queued
  void enqueue(Job job);
  static void wait_for(const Swapped& executable, std::stop_source& cancel);
  void work(const std::stop_token& stop);
  void make_first(const std::stop_token& stop);
  void make(Job& job);

  const BackendOptions options_;
  const std::vector<graph::Pass> passes_;
  mutable std::unique_ptr<Queue> queue_;  ///< last member, so that its thread ends before the members that it uses
};

}  // namespace bellows::compile_detail
