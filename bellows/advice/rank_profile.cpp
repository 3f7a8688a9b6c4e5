#include "bellows/advice/rank_profile.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/comm/rendezvous/peer.h"
#include "bellows/core/stats.h"
#include "bellows/report/json_text.h"

namespace bellows::train {

namespace {

using inspect::StepPhase;
using inspect::TimedStep;
using nlohmann::json;

// ---- exchange between ranks

json phase_record(const StepPhase& phase) {
  return {phase.name, phase.seconds, phase.wait_s};
}

StepPhase phase_of(const json& record) {
  return {record[0].get<std::string>(), record[1].get<double>(), record[2].get<double>()};
}

json phase_records(const std::vector<StepPhase>& phases) {
  auto records = json::array();
  for (const StepPhase& phase : phases) records.push_back(phase_record(phase));
  return records;
}

std::vector<StepPhase> phases_of(const json& records) {
  std::vector<StepPhase> phases;
  phases.reserve(records.size());
  for (const json& record : records) phases.push_back(phase_of(record));
  return phases;
}

std::string rank_record(const RankProfile& rank) {
  auto steps = json::array(), calls = json::array();
  for (const TimedStep& step : rank.steps) steps.push_back({step.start_us, step.seconds, phase_records(step.phases)});
  for (const comm::RecordedCall& call : rank.calls)
    calls.push_back({call.name, call.group, call.bytes, call.start_us, call.end_us});
  return json_text(
      json{{"host", rank.host}, {"steps", steps}, {"calls", calls}, {"phases", phase_records(rank.phases)}});
}

RankProfile rank_of(const std::string& text) {
  const json record = json::parse(text);
  RankProfile rank{.host = record["host"], .phases = phases_of(record["phases"])};
  rank.steps.reserve(record["steps"].size());
  for (const json& step : record["steps"])
    rank.steps.push_back({step[0].get<double>(), step[1].get<double>(), phases_of(step[2])});
  rank.calls.reserve(record["calls"].size());
  for (const json& call : record["calls"])
    rank.calls.push_back({call[0].get<std::string>(), call[1].get<std::string>(), call[2].get<int64_t>(),
                          call[3].get<double>(), call[4].get<double>()});
  return rank;
}

std::vector<comm::RecordedCall> calls_within(const std::vector<TimedStep>& steps,
                                             std::vector<comm::RecordedCall> calls) {
  const double begin = steps.front().start_us, end = steps.back().start_us + 1e6 * steps.back().seconds;
  std::erase_if(calls, [&](const auto& call) { return call.start_us < begin || call.start_us > end; });
  return calls;
}

// ---- collectives

/// The shortest time of each call of a group on any rank, which is that of the rank that called it last. Clocks of
/// machines differ, so that only durations can be compared.
std::map<std::string, std::vector<double>> shortest_calls(const std::vector<RankProfile>& ranks) {
  std::map<std::string, std::vector<double>> shortest;
  for (const RankProfile& rank : ranks) {
    std::map<std::string, size_t> next;
    for (const comm::RecordedCall& call : rank.calls) {
      std::vector<double>& of_group = shortest[call.group];
      const double seconds = (call.end_us - call.start_us) / 1e6;
      const size_t number = next[call.group]++;
      if (number < of_group.size()) {
        of_group[number] = std::min(of_group[number], seconds);
      } else {
        of_group.push_back(seconds);
      }
    }
  }
  return shortest;
}

std::vector<RankExchange> exchanges_of(const std::vector<RankProfile>& ranks) {
  const auto shortest = shortest_calls(ranks);
  std::map<std::string, RankExchange> most;
  for (const RankProfile& rank : ranks) {
    std::map<std::string, RankExchange> own;
    std::map<std::string, size_t> next;
    const auto steps = static_cast<double>(rank.steps.size());
    for (const comm::RecordedCall& call : rank.calls) {
      RankExchange& exchange = own[call.name];
      exchange.name = call.name;
      exchange.calls += 1 / steps;
      exchange.bytes += static_cast<double>(call.bytes) / steps;
      exchange.seconds += shortest.at(call.group)[next[call.group]++] / steps;
    }
    for (auto& [name, exchange] : own) {
      if (RankExchange& known = most[name]; exchange.bytes >= known.bytes) known = exchange;
    }
  }
  std::vector<RankExchange> exchanges;
  exchanges.reserve(most.size());
  for (auto& [name, exchange] : most) exchanges.push_back(std::move(exchange));
  std::ranges::stable_sort(exchanges, std::greater<>(), &RankExchange::bytes);
  return exchanges;
}

}  // namespace

double RankProfile::step_s() const {
  double seconds = 0;
  for (const TimedStep& step : steps) seconds += step.seconds;
  return steps.empty() ? 0 : seconds / static_cast<double>(steps.size());
}

double RankProfile::wait_s() const {
  double seconds = 0;
  for (const TimedStep& step : steps) seconds += step.wait_s();
  return steps.empty() ? 0 : seconds / static_cast<double>(steps.size());
}

double RankProfile::own_s(std::string_view phase) const {
  const auto found = std::ranges::find(phases, phase, &StepPhase::name);
  return found == phases.end() ? 0 : found->seconds - found->wait_s;
}

double RanksProfile::exposed_s() const {
  const size_t steps = ranks.front().steps.size();
  double seconds = 0;
  for (size_t step = 0; step < steps; ++step) {
    double shortest = ranks.front().steps[step].wait_s();
    for (const RankProfile& rank : ranks) shortest = std::min(shortest, rank.steps[step].wait_s());
    seconds += shortest;
  }
  return steps == 0 ? 0 : seconds / static_cast<double>(steps);
}

size_t RanksProfile::slowest() const {
  const auto own = [](const RankProfile& rank) { return rank.own_s(); };
  return static_cast<size_t>(std::ranges::max_element(ranks, {}, own) - ranks.begin());
}

double RanksProfile::others_own_s() const {
  std::vector<double> others;
  others.reserve(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank != slowest()) others.push_back(ranks[rank].own_s());
  }
  return others.empty() ? ranks.front().own_s() : median(others);
}

double RanksProfile::lost_s() const {
  return ranks[slowest()].own_s() - others_own_s();
}

RanksProfile gather_ranks(const comm::Group& group, const inspect::StepProfile& own,
                          const std::vector<comm::RecordedCall>& calls) {
  const RankProfile mine{.host = comm::this_peer().host,
                         .steps = own.timed,
                         .calls = calls_within(own.timed, calls),
                         .phases = own.phases};
  RanksProfile result;
  result.ranks.reserve(static_cast<size_t>(group.size()));
  for (const std::string& record : comm::all_gather_strings(rank_record(mine), group))
    result.ranks.push_back(rank_of(record));
  result.exchanges = exchanges_of(result.ranks);
  return result;
}

void add_calls(TraceWriter& trace, const std::vector<comm::RecordedCall>& calls, double start_us) {
  constexpr uint64_t row = 1000000;  // below the rows of threads
  trace.name_thread(row, "collectives");
  double free_us = start_us;  // calls of a row must not overlap, and a call starts when the one before it has ended
  for (const comm::RecordedCall& call : calls) {
    if (call.start_us < start_us) continue;
    const double begin_us = std::max(call.start_us, free_us);
    free_us = std::max(call.end_us, begin_us);
    trace.add({call.name, "communication", begin_us, free_us - begin_us, row,
               json_text(json{{"bytes", call.bytes}, {"group", call.group}})});
  }
}

std::vector<std::string> gather_traces(const TraceWriter& own, const comm::Group& group) {
  TraceWriter named;
  named.name_process("rank " + std::to_string(group.rank()));
  named.append(own);
  return comm::all_gather_strings(named.records(), group);
}

}  // namespace bellows::train
