#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/comm/call_log.h"
#include "bellows/comm/group.h"
#include "bellows/inspect/profile/profile.h"
#include "bellows/report/trace_writer.h"

namespace bellows::train {

/// The timed steps of one rank.
struct RankProfile {
  std::string host{};                        ///< name of its machine
  std::vector<inspect::TimedStep> steps{};   ///< in order
  std::vector<comm::RecordedCall> calls{};   ///< in these steps, in the order in which they began
  std::vector<inspect::StepPhase> phases{};  ///< means of the steps

  double step_s() const;  ///< mean time of a step
  double wait_s() const;  ///< mean time in which a step waits for other ranks
  /// Mean time of a step in which the rank loads, computes or exchanges data without waiting.
  double own_s() const { return step_s() - wait_s(); }
  /// The part of own_s() in a phase.
  double own_s(std::string_view phase) const;
};

/// The collectives of one kind. Numbers are means per step of the rank with the most bytes.
struct RankExchange {
  std::string name{};  ///< such as "all_reduce"
  double calls = 0;
  double bytes = 0;    ///< of the rank's own tensors
  double seconds = 0;  ///< from the time at which the last rank called a collective to its end

  double bytes_per_second() const { return seconds > 0 ? bytes / seconds : 0; }
};

/// The profiles of all ranks of a job.
struct RanksProfile {
  std::vector<RankProfile> ranks{};       ///< by rank
  std::vector<RankExchange> exchanges{};  ///< by bytes, largest first

  /// Mean time in which all ranks wait, so that the time is that of communication: the shortest wait of each step.
  double exposed_s() const;
  /// Returns the rank with the longest own_s().
  size_t slowest() const;
  /// Returns the median of own_s() of the other ranks.
  double others_own_s() const;
  /// Mean time by which the slowest rank delays each step.
  double lost_s() const;
};

/// Gathers the profiles of all ranks. Collective; the result is the same on all ranks.
/// Params: calls – of this rank; those outside the timed steps are left out
RanksProfile gather_ranks(const comm::Group& group, const inspect::StepProfile& own,
                          const std::vector<comm::RecordedCall>& calls);

/// Adds a row with the calls that began at `start_us` or later to a trace.
void add_calls(TraceWriter& trace, const std::vector<comm::RecordedCall>& calls, double start_us);
/// Returns the records of all ranks' traces, each with the name of its rank. Collective.
std::vector<std::string> gather_traces(const TraceWriter& own, const comm::Group& group);

/// Returns the table of the ranks, at most 80 columns wide.
std::string ranks_text(const RanksProfile& profile);
/// Returns a JSON object as text.
std::string ranks_json(const RanksProfile& profile);
/// Returns the sections of the HTML page.
std::string ranks_sections(const RanksProfile& profile);

}  // namespace bellows::train
