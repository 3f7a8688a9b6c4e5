#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bellows/graph/program/explanation.h"
#include "bellows/graph/program/program.h"
#include "bellows/graph/recording/buffer_table.h"

namespace bellows::graph::detail {

struct Step;

/// Returns whether two different storages share memory (from_blob).
bool share_memory(const c10::StorageImpl& a, const c10::StorageImpl& b);

/// Deferred operators that run together, and the values that their number inputs have in the current call.
struct Segment {
  std::vector<const RecordedOperator*> operators{};
  std::vector<c10::IValue> numbers{};
};

/// The program of a segment.
struct Plan {
  /// Creates a plan, without its executable.
  Plan(const Segment& segment, BufferTable& buffers, Program& program);

  const Step* from = nullptr;  ///< the step after which the segment begins
  std::vector<bool> alive{};   ///< for each buffer that the segment creates: whether it is still referenced
  size_t numbers = 0;          ///< how many numbers are inputs; this number never decreases
  bool in_order = false;       ///< the operators run one by one in their original order, without a back end
  std::shared_ptr<Executable> executable{};   ///< null if the back end failed to prepare the program
  std::vector<BufferId> inputs{}, outputs{};  ///< buffers of the program's inputs and outputs; no_buffer: written back
  std::vector<bool> written{};                ///< for each input: whether the program writes it
  int64_t made = 0, visible = 0;  ///< how many buffers the segment creates, and how many of these become outputs
  std::vector<c10::Storage> input_storages{}, output_storages{};  ///< empty between calls

  /// Returns whether two inputs with different storages share memory (from_blob). Operators must then run in their
  /// original order.
  bool inputs_overlap(BufferTable& buffers) const;
  /// Runs the program. The data of the results moves into the storages of the pending tensors.
  /// Throws: exceptions of operators, with the name of the operator. Results of earlier operators then have their values
  ///         if `in_order`, and otherwise only if the program had already computed them. Accessing another result throws
  ///         an error with the reason
  void run(const Segment& segment, BufferTable& buffers, Explanation& counts);

 private:
  /// Gives the outputs their memory. Accessing an output without memory throws an error with the reason `error`.
  void hand_out(BufferTable& buffers, const std::string& error);
};

/// The plans of the segments that end at one step.
class Plans {
 public:
  /// Returns the matching plan, or null if there is none.
  Plan* find(const Step* from, const std::vector<bool>& alive, size_t numbers, bool in_order);
  /// Creates a plan, and drops the oldest one if there are too many. Returns null if the back end has prepared as many
  /// programs for this step as the limit allows.
  /// Params: backend – null: the operators run in order
  Plan* make(Backend* backend, const Step* from, const Segment& segment, std::vector<bool> alive, BufferTable& buffers);
  /// Returns the number of programs for which a back end was asked, including those that have been dropped.
  size_t made() const { return made_; }
  /// Notes that a call diverged from the recordings at this step. Returns whether a call did so before. If it did, it may
  /// happen again, and a plan is worth keeping.
  bool diverged_before() { return std::exchange(diverged_, true); }

 private:
  static constexpr int64_t most_kept = 8;  ///< with a back end, and without one
  static constexpr size_t most_made = 64;

  std::vector<std::unique_ptr<Plan>> all_;  ///< oldest first
  size_t made_ = 0;
  bool diverged_ = false;
};

/// Runs the operators of a segment in order, without keeping a plan. Otherwise the same as Plan::run().
void run_once(const Segment& segment, BufferTable& buffers, Explanation& counts);

}  // namespace bellows::graph::detail
