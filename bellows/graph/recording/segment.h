#pragma once

#include <memory>
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
  std::vector<const Node*> nodes{};
  std::vector<c10::IValue> numbers{};
};

/// The program that runs instead of a segment's operators.
struct Plan {
  const Step* from = nullptr;  ///< the step after which the segment begins
  std::vector<bool> alive{};   ///< for each buffer that the segment creates: whether it is still referenced
  size_t numbers = 0;          ///< how many numbers are inputs; this number never decreases
  std::shared_ptr<Executable> executable{};   ///< null: the operators run in order
  std::vector<BufferId> inputs{}, outputs{};  ///< buffers of the program's inputs and outputs; no_buffer: written back
  std::vector<bool> written{};                ///< for each input: whether the program writes it
  int64_t made = 0, visible = 0;  ///< how many buffers the segment creates, and how many of these become outputs
  std::vector<c10::Storage> input_storages{}, output_storages{};  ///< empty between calls

  /// Returns whether two inputs with different storages share memory (from_blob). Operators must then run in their
  /// original order.
  bool inputs_overlap(BufferTable& buffers) const;
  /// Replaces run_in_order(). If an operator throws, results of earlier operators have values only if the program had
  /// already computed them.
  void run(const Segment& segment, BufferTable& buffers, Explanation& counts);

 private:
  /// Gives the outputs their memory. Accessing an output without memory throws an error with the reason `error`.
  void hand_out(BufferTable& buffers, const std::string& error);
};

/// The plans of the segments that end at one step.
class Plans {
 public:
  /// Returns the matching plan, or null if there is none.
  Plan* find(const Step* from, const std::vector<bool>& alive, size_t numbers);
  /// Creates a plan. Returns null if the limit for this step has been reached. The operators of the segment then run in
  /// order.
  Plan* make(Backend& backend, const Step* from, const Segment& segment, std::vector<bool> alive, BufferTable& buffers);

 private:
  static constexpr size_t most_kept = 8, most_made = 64;

  std::vector<std::unique_ptr<Plan>> all_;  ///< oldest first
  size_t made_ = 0;
};

}  // namespace bellows::graph::detail
