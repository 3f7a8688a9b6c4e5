#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "bellows/compile/bisect.h"
#include "bellows/compile/jit/kernel_library.h"
#include "bellows/graph/passes/pass.h"
#include "bellows/graph/program/constant_store.h"
#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

struct KernelFamily;

/// Returns whether operators in bf16 run in fp32, because this processor is slower in bf16 (Machine::has_fast_bf16()).
bool widens_bf16();

struct BackendOptions {
  bool exact = false;  ///< use only bit-identical passes and generate no code
  /// Tensors that keep their values. Operators that depend only on such tensors are computed once.
  std::vector<at::Tensor> frozen{};
  std::optional<c10::ScalarType> autocast{};          ///< see CompileOptions
  bool background = false;                            ///< see CompileOptions
  bool always = true;                                 ///< see CompileOptions, where it is off by default
  std::vector<graph::Pass> extra_passes{};            ///< run before the pass "loops"
  double memory_budget = 1;                           ///< see CompileOptions
  bool widen_bf16 = widens_bf16();                    ///< run the pass "widening" for bf16
  bool batch_invariant = false;                       ///< see graph::PassOptions
  std::shared_ptr<KernelProvider> kernels{};          ///< if null, the kernel cache of this process
  std::shared_ptr<graph::ConstantStore> constants{};  ///< for constants that are computed in advance; may be null
};

/// Runs programs on a CPU. It converts a program to functional form, runs the passes, creates groups and generates
/// kernels. A ProgramRunner runs the result. Programs are optimized on a thread of this back end, and prepare() waits
/// for it. With `background`, prepare() does not wait: the recorded program runs unchanged until the optimized program
/// replaces it between two calls. A program stays unchanged if no thread can be started, if optimizing it fails, or if
/// the process forks in the meantime. In the first two cases, a warning is logged once. bisect.h describes environment
/// variables that check each program, or skip passes.
class CpuBackend : public graph::Backend {
 public:
  /// Throws: c10::ValueError if options contradict each other, or if an environment variable of PassSettings is invalid
  explicit CpuBackend(BackendOptions options = {});
  ~CpuBackend() override;

  std::shared_ptr<graph::Executable> prepare(graph::Program program, std::span<const c10::Storage> inputs) override;
  std::string to_text() const override;
  /// Whether no program is being compiled. A program whose compilation is complete is used from the next call on.
  bool ready() const;

 private:
  class Swapped;
  struct Job {
    std::weak_ptr<Swapped> executable;
    graph::Program program;
    std::vector<bool> frozen;          ///< for each input, whether it keeps its value
    std::vector<c10::Storage> inputs;  ///< the frozen inputs; all others are null
    std::vector<c10::Storage> seen;    ///< the memory of the frozen inputs, which the worker may read at any time
    std::stop_source cancel{std::nostopstate};  ///< stops the compilation
    std::vector<c10::Storage> copies{};         ///< of all inputs, if programs are checked
  };

  struct Queue;

  /// Returns the queue of this process. A child process of fork() starts with an empty queue.
  Queue& own_queue() const;
  /// Adds a job to the queue.
  /// Throws: c10::Error if the system cannot start a thread. The queue is then empty
  void enqueue(Job job);
  static void wait_for(const Swapped& executable, std::stop_source& cancel);
  void work(const std::stop_token& stop);
  std::shared_ptr<Swapped> make_first(const std::stop_token& stop);
  void make(Job& job);
  void count_program(bool compiled) const;
  /// Returns the names of the passes to skip: passes that the user excludes, passes that need generated code if there is
  /// none, and wrong passes. The list contains "" if the program must run as recorded.
  std::vector<std::string> skipped_passes(const Job& job, const KernelFamily& kernels, std::string& report) const;
  /// Runs all passes before the kernels are generated, and recomputes values if there is a memory budget.
  std::string optimize(graph::Program& program, const std::vector<std::string>& skipped) const;
  graph::PassOptions pass_options() const;
  void add_report(std::string report) const;
  KernelProvider& kernel_provider() const;

  const BackendOptions options_;
  const std::vector<graph::Pass> passes_;
  const PassSettings settings_;
  mutable std::atomic<bool> warned_of_budget_ = false;
  mutable std::unique_ptr<Queue> queue_;  ///< last member, so that its thread ends before the members that it uses
};

}  // namespace bellows::compile_detail
