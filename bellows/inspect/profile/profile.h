#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/inspect/profile/machine_peaks.h"
#include "bellows/inspect/sync.h"
#include "bellows/inspect/tensor_timeline.h"
#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

/// The resource that limits an operator or a step.
enum class Limit {
  loading,        ///< the step waits for data
  host,           ///< calls of small operators, and code outside operators
  memory,         ///< memory bandwidth
  compute,        ///< floating-point operations
  communication,  ///< the step waits for other ranks
};
inline constexpr size_t limits = 5;

/// TraceScopes that the profile treats in a special way.
inline constexpr std::string_view loading_phase = "load", optimizer_phase = "optimizer";

/// Returns the name, such as "data loading" or "memory bandwidth".
std::string_view to_string(Limit limit);

/// All calls of one operator in one phase with one dtype. Numbers are means per step.
struct ProfiledOp {
  std::string op{};     ///< for example "aten::convolution"
  std::string phase{};  ///< the outermost TraceScope, such as "forward"; empty if there is none
  bool backward = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  ///< of the first floating-point tensor
  double calls = 0, flops = 0, bytes = 0;
  double seconds = 0;  ///< host time

  /// Returns the shortest time that the roofline allows: the longest of the times for FLOPs, bytes and calls at the
  /// machine's peaks.
  double least_seconds(const MachinePeaks& peaks) const;
  /// Returns the resource that determines least_seconds(). If this time is less than 5 % of the measured time, the
  /// operator is limited by overhead, and the result is `host`.
  Limit limit(const MachinePeaks& peaks) const;
};

/// Copies that only change the order of elements in memory. Numbers are means per step.
struct ReorderingCopy {
  std::string op{}, module{};
  std::string site{};   ///< call_site(); empty if the copy is in the code of Bellows or libtorch
  std::string sizes{};  ///< such as "8×64×32×32"
  /// Whether it is a conversion between contiguous and channels-last. Otherwise, the dimensions were permuted.
  bool images = false;
  double calls = 0, bytes = 0, seconds = 0;
};

/// Calls of a matmul, a convolution or attention with a size that is not a multiple of 8. Numbers are means per step.
struct OddSizes {
  std::string op{}, module{};
  std::string sizes{};  ///< of the operands, such as "64×100 · 100×10"
  double calls = 0, flops = 0, seconds = 0;
};

/// A batch norm in training mode.
struct BatchNormUse {
  std::string module{};
  int64_t samples = 0;  ///< in a batch
};

/// Convolutions by the layout of their input. Numbers are means per step.
struct ConvolutionUse {
  double contiguous_calls = 0, contiguous_seconds = 0, channels_last_calls = 0;
};

/// Operators that autograd records during backward. With activation checkpointing, these are the recomputed operators.
/// Numbers are means per step.
struct Recomputation {
  double calls = 0, flops = 0, seconds = 0;
  double bytes = 0;  ///< size of the results
};

/// A phase of the step: an outermost TraceScope. Several scopes of the same name are one phase.
struct StepPhase {
  std::string name{};  ///< empty for the time outside all scopes
  double seconds = 0;
  double wait_s = 0;  ///< part of `seconds` in which the step waits for other ranks
};

/// One of the timed steps.
struct TimedStep {
  double start_us = 0;  ///< on the clock of trace_now_us()
  double seconds = 0;
  std::vector<StepPhase> phases{};  ///< in the order in which they began; the last one is the time outside all scopes

  double wait_s() const;
};

/// The profile of a training step.
struct StepProfile {
  MachinePeaks peaks{};
  int64_t steps = 0;                     ///< number of timed steps
  double step_s = 0;                     ///< mean time of a step without instruments
  double cpu_s = 0;                      ///< processor time of a step, summed over the threads of the process
  double minor_faults = 0;               ///< pages per step that the system had to provide
  double major_faults = 0;               ///< pages per step that were read from a disk, for example after swapping
  std::vector<TimedStep> timed{};        ///< the timed steps, in order
  std::vector<StepPhase> phases{};       ///< means of the timed steps; the last one is the time outside all scopes
  std::vector<ProfiledOp> ops{};         ///< by time, longest first
  std::vector<SyncEvent> syncs{};        ///< of one step, most frequent first
  std::vector<ReorderingCopy> copies{};  ///< by bytes, largest first
  std::vector<OddSizes> odd_sizes{};     ///< by FLOPs, largest first
  std::vector<BatchNormUse> batch_norms{};
  ConvolutionUse convolutions{};
  Recomputation recomputation{};
  std::optional<TensorTimeline> memory{};  ///< if the options have a model

  double phase_seconds(std::string_view name) const;
  /// Returns the seconds of a step in which it waits for other ranks.
  double wait_s() const;
  /// Returns the seconds of a step by resource. The sum is step_s. Operators count for the limit of their roofline.
  /// Time outside operators counts as host, and in the phase "optimizer" as memory bandwidth, because fused optimizers
  /// are not operators. Waiting for other ranks counts as communication.
  std::array<double, limits> seconds_by_limit() const;
  /// Returns the resource with the most seconds.
  Limit limit() const;
  /// Returns one sentence, such as "Data loading limits this step: 71 % of 5.2 ms."
  std::string verdict() const;
  /// Returns the profile as text. Tables are at most 80 columns wide, but call sites can be longer.
  /// Params: rows – the largest number of rows of each table
  std::string to_text(size_t rows = 12) const;
  std::string to_json() const;
  /// Returns a self-contained HTML page.
  std::string to_html(const std::string& title) const;
  /// Returns the sections of the page, for pages that show more than the profile. They need html_style().
  std::string html_sections() const;
  static std::string html_style();
};

struct ProfileOptions {
  int64_t warm_up_steps = 3;
  int64_t steps = 10;  ///< number of timed steps
  /// If set, operators are assigned to its modules, and the lifetimes of tensors are recorded.
  std::optional<Model> model{};
  std::optional<MachinePeaks> peaks{};  ///< if not set, they are measured
  TraceWriter* trace = nullptr;         ///< if not null, another step is recorded as a Chrome trace
};

/// Runs a training step several times and measures what limits it:
/// ```
/// inspect::StepProfile profile = inspect::profile([&] { train_step(); }, {.model = model});
/// std::cout << profile.to_text();
/// ```
/// The steps are real: they consume batches and change weights. The first steps are timed with the clock alone. In the
/// next steps, instruments count operators, synchronizations and tensors. Put loading into a TraceScope "load", and the
/// optimizer into a TraceScope "optimizer". Without the first, time for loading counts as host time.
/// Numerics: instruments do not change results
/// Cost:    warm_up_steps + steps + up to 7 steps, and about one second to measure the machine's peaks
/// Threads: observes this thread and autograd's workers for it
/// Throws:  exceptions from `step`; c10::ValueError if a number of steps is below 0, or `steps` is 0
StepProfile profile(const std::function<void()>& step, const ProfileOptions& options = {});

}  // namespace bellows::inspect
