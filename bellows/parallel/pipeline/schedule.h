#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows::parallel {

/// The computations of a pipeline. `backward` computes the gradients of a stage's input and weights. It can be divided
/// into `backward_input` and a later `backward_weight`.
enum class PipelineWork { forward, backward, backward_input, backward_weight };

/// Returns "forward", "backward", "backward input" or "backward weight".
const char* to_string(PipelineWork work);

/// One computation: a stage processes a micro-batch.
struct PipelineAction {
  PipelineWork work = PipelineWork::forward;
  int stage = 0;
  int micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

/// Returns a text such as "F2.5", which is forward of micro-batch 5 in stage 2. The letters are F (forward), B
/// (backward), I (backward_input) and W (backward_weight).
std::string to_string(const PipelineAction& action);

/// A schedule is a table: for each rank, the actions in the order in which the rank runs them. Exchanges follow from
/// the table: a rank sends a result to the next stage's rank as soon as the action has finished.
/// Ref: arXiv:1811.06965 (GPipe), arXiv:2104.04473 (1F1B, interleaved), arXiv:2401.10241 (zero bubble)
struct PipelineSchedule {
  std::string name;                                ///< for messages and traces
  int micro_batches = 0;                           ///< number of micro-batches of a step
  std::vector<int> stage_ranks;                    ///< rank of each stage
  std::vector<std::vector<PipelineAction>> ranks;  ///< actions of each rank
  int stages() const { return static_cast<int>(stage_ranks.size()); }
};

/// All forward passes, then all backward passes. Each rank keeps the activations of all micro-batches.
/// Params:  ranks, micro_batches – at least 1
/// Numerics: like all schedules of this header: each stage adds the gradients of micro-batches in ascending order
/// Cost:    bubble share (ranks - 1) / (micro_batches + ranks - 1), if all stages take equal time
/// Throws:  c10::ValueError if a number is below 1
PipelineSchedule gpipe(int ranks, int micro_batches);

/// One forward, one backward: rank r keeps the activations of at most ranks - r micro-batches. The bubble share is that
/// of gpipe().
PipelineSchedule one_forward_one_backward(int ranks, int micro_batches);

/// Each rank has several stages: stage s belongs to rank s % ranks. The bubble is divided by `stages_per_rank`; the
/// number of exchanges is multiplied by it.
/// Cost:   bubble share (ranks - 1) / (stages_per_rank · micro_batches + ranks - 1)
/// Throws: c10::ValueError if `ranks` does not divide `micro_batches`, or if a number is below 1
PipelineSchedule interleaved(int ranks, int micro_batches, int stages_per_rank);

/// ZB-H1: backward_input runs as early as in one_forward_one_backward(), and backward_weight fills a part of the
/// bubble. Rank r keeps the activations of at most `ranks` micro-batches.
/// Cost:   bubble share (ranks - 1) / (3 · micro_batches + ranks - 1), if forward, backward_input and backward_weight
///         take equal time and micro_batches ≥ ranks. Weight gradients that are computed separately cost some time
///         (split_backward.h)
PipelineSchedule zero_bubble_h1(int ranks, int micro_batches);

/// Returns the names of the schedules above: gpipe, 1f1b, interleaved and zero_bubble.
const std::vector<std::string>& schedule_names();

/// Returns the schedule of a name.
/// Params: stages_per_rank – of interleaved; the other schedules have one stage per rank
/// Throws: c10::ValueError if the name is unknown (the message suggests one), or for the reasons of the schedule
PipelineSchedule named_schedule(const std::string& name, int ranks, int micro_batches, int stages_per_rank);

/// Checks that a table can run: stages belong to existing ranks, each stage computes each micro-batch once, and no rank
/// waits forever.
/// Throws: c10::ValueError that names the rank, the action and the rule
void check_schedule(const PipelineSchedule& schedule);

/// Returns the largest number of activations that each rank keeps at the same time. An activation is that of one
/// micro-batch in one stage. It is freed after backward or backward_weight.
std::vector<int> activations_in_flight(const PipelineSchedule& schedule);

/// Converts tables from and to text. The first lines are "schedule NAME", "micro_batches COUNT" and "stage_ranks R0 R1
/// …", then one line per rank lists its actions: "rank 0: F0.0 F0.1 B0.0 B0.1". `#` starts a comment.
/// Throws: c10::ValueError if the text is malformed (the message has the line number), or for the reasons of
///         check_schedule()
std::string to_text(const PipelineSchedule& schedule);
PipelineSchedule schedule_from_text(const std::string& text);

/// Reads or writes a file with such a text. The file is written atomically.
/// Throws: c10::ValueError for the reasons of the functions above, or if the file cannot be read. write_schedule()
///         throws c10::Error if the file cannot be written. The message has the path and the reason
PipelineSchedule read_schedule(const std::string& path);
void write_schedule(const PipelineSchedule& schedule, const std::string& path);

}  // namespace bellows::parallel
