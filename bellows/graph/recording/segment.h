#pragma once

#include <memory>
#include <vector>

#include "bellows/graph/program/explanation.h"
#include "bellows/graph/program/program.h"
#include "bellows/graph/recording/buffer_table.h"

namespace bellows::graph::detail {

struct Step;

/// Deferred operators that will run at once, and those of their numbers that are inputs, as they came.
struct Segment {
  std::vector<const Node*> nodes{};
  std::vector<c10::IValue> numbers{};
};

/// What runs in the place of a segment's operators.
struct Plan {
  const Step* from = nullptr;                 ///< the step behind which the segment begins
  std::vector<bool> alive{};                  ///< which of the buffers that it makes somebody will look at
  size_t numbers = 0;                         ///< more become inputs, never fewer
  std::shared_ptr<Executable> executable{};   ///< null: the operators run in order
  std::vector<BufferId> inputs{}, outputs{};  ///< of the latter, no_buffer is written back
  int64_t made = 0, handed_out = 0;
  std::vector<c10::Storage> input_storages{}, output_storages{};  ///< empty between calls

  /// Whether two of the inputs, which are told apart by their storages, are the same memory (from_blob): then only order keeps them right.
  bool inputs_overlap(BufferTable& buffers) const;
  /// In the place of run_in_order(), and as that, but that after an error what came before has its values only as far as the program had
  /// computed them by then.
  void run(const Segment& segment, BufferTable& buffers, Explanation& counts);

 private:
  /// Gives outputs their memory; those that have none say why.
  void hand_out(BufferTable& buffers, const std::string& error);
};

/// The plans of the segments that end at one step.
class Plans {
 public:
  /// Null: there is none.
  Plan* find(const Step* from, const std::vector<bool>& alive, size_t numbers);
  /// Null: enough were made for this step, and its segments run in order.
  Plan* make(Backend& backend, const Step* from, const Segment& segment, std::vector<bool> alive, BufferTable& buffers);

 private:
  static constexpr size_t most_kept = 4, most_made = 16;

  std::vector<std::unique_ptr<Plan>> all_;  ///< oldest first
  size_t made_ = 0;
};

}  // namespace bellows::graph::detail
