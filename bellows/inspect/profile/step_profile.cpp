#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "bellows/core/stats.h"
#include "bellows/inspect/op_info.h"
#include "bellows/inspect/profile/profile.h"
#include "bellows/report/json_text.h"

namespace bellows::inspect {

namespace {

constexpr std::array<std::string_view, limits> limit_names = {"data loading", "host overhead", "memory bandwidth",
                                                              "compute", "communication"};

constexpr std::array<const char*, limits> short_names = {"load", "host", "memory", "compute", "ranks"};

/// An operator whose roofline is a smaller share of its time is limited by overhead, such as that of starting threads.
constexpr double overhead_share = 0.05;

size_t index_of(Limit limit) {
  return static_cast<size_t>(limit);
}

std::string percent(double part, double whole) {
  return format_number("%.1f", whole > 0 ? 100 * part / whole : 0.0);
}

std::string place_of(const std::string& site, const std::string& module) {
  if (!site.empty()) return ", called at " + site;
  return module.empty() ? "" : ", module " + module;
}

std::string op_title(const ProfiledOp& op) {
  std::string title = op.op.starts_with("aten::") ? op.op.substr(6) : op.op;
  if (op.backward) title += " (b)";
  return title;
}

std::string operator_table(const StepProfile& profile, size_t rows) {
  std::string text = format_number("\n%-31s %6s %8s %8s %8s %5s  %s\n", "operator (b: backward)", "calls", "GFLOP",
                                   "MB", "ms", "peak", "limit") +
                     std::string(79, '-') + "\n";
  for (size_t i = 0; i < std::min(rows, profile.ops.size()); ++i) {
    const ProfiledOp& op = profile.ops[i];
    const double share = op.seconds > 0 ? op.least_seconds(profile.peaks) / op.seconds : 0;
    const char* limit = short_names[index_of(op.limit(profile.peaks))];
    text += format_number("%-31s %6.0f %8.3f %8.2f %8.3f %4.0f%%  %s\n", shortened(op_title(op), 31).c_str(), op.calls,
                          op.flops / 1e9, op.bytes / 1e6, 1e3 * op.seconds, 100 * share, limit);
  }
  if (profile.ops.size() > rows) text += c10::str("and ", profile.ops.size() - rows, " more\n");
  return text;
}

std::string phase_table(const StepProfile& profile) {
  std::string text = format_number("\n%-33s %10s %6s\n", "phase", "ms", "%");
  for (const StepPhase& phase : profile.phases)
    text += format_number("%-33s %10.3f %6s\n", shortened(phase.name.empty() ? "(other)" : phase.name, 33).c_str(),
                          1e3 * phase.seconds, percent(phase.seconds, profile.step_s).c_str());
  text += format_number("\n%-33s %10s %6s\n", "limited by", "ms", "%");
  const auto seconds = profile.seconds_by_limit();
  const bool ranks = seconds[index_of(Limit::communication)] > 0;
  for (size_t i = 0; i < (ranks ? limits : index_of(Limit::communication)); ++i)
    text += format_number("%-33s %10.3f %6s\n", limit_names[i].data(), 1e3 * seconds[i],
                          percent(seconds[i], profile.step_s).c_str());
  return text;
}

/// The lines of a list, with a title if there is one.
std::string list_of(const std::string& title, const std::vector<std::string>& lines, size_t rows) {
  if (lines.empty()) return "";
  std::string text = "\n" + title + "\n";
  for (size_t i = 0; i < std::min(rows, lines.size()); ++i) text += "  " + lines[i] + "\n";
  if (lines.size() > rows) text += c10::str("  and ", lines.size() - rows, " more\n");
  return text;
}

std::vector<std::string> sync_lines(const StepProfile& profile) {
  std::vector<std::string> lines;
  lines.reserve(profile.syncs.size());
  for (const SyncEvent& event : profile.syncs)
    lines.push_back(c10::str(event.count, " × ", event.op, " ", event.reason, place_of(event.site, "")));
  return lines;
}

std::vector<std::string> copy_lines(const StepProfile& profile) {
  std::vector<std::string> lines;
  lines.reserve(profile.copies.size());
  for (const ReorderingCopy& copy : profile.copies)
    lines.push_back(c10::str(format_number("%.0f", copy.calls), " × ", copy.op, " of ", copy.sizes,
                             copy.images ? " between image layouts, " : " after a permutation, ",
                             format_bytes(copy.bytes), place_of(copy.site, copy.module)));
  return lines;
}

std::vector<std::string> size_lines(const StepProfile& profile) {
  std::vector<std::string> lines;
  lines.reserve(profile.odd_sizes.size());
  for (const OddSizes& odd : profile.odd_sizes)
    lines.push_back(c10::str(format_number("%.0f", odd.calls), " × ", odd.op, " of ", odd.sizes, ", ",
                             format_number("%.3f", odd.flops / 1e9), " GFLOP", place_of("", odd.module)));
  return lines;
}

double total_wait(const std::vector<StepPhase>& phases) {
  double seconds = 0;
  for (const StepPhase& phase : phases) seconds += phase.wait_s;
  return seconds;
}

nlohmann::ordered_json to_object(const SyncEvent& event) {
  return {{"op", event.op}, {"reason", event.reason}, {"site", event.site}, {"calls", event.count}};
}

nlohmann::ordered_json to_object(const ReorderingCopy& copy) {
  return {{"op", copy.op},         {"module", copy.module}, {"site", copy.site},   {"sizes", copy.sizes},
          {"images", copy.images}, {"calls", copy.calls},   {"bytes", copy.bytes}, {"seconds", copy.seconds}};
}

nlohmann::ordered_json to_object(const OddSizes& odd) {
  return {{"op", odd.op},       {"module", odd.module}, {"sizes", odd.sizes},
          {"calls", odd.calls}, {"flops", odd.flops},   {"seconds", odd.seconds}};
}

nlohmann::ordered_json to_object(const BatchNormUse& norm) {
  return {{"module", norm.module}, {"samples", norm.samples}};
}

nlohmann::ordered_json to_object(const StepPhase& phase) {
  return {{"name", phase.name}, {"seconds", phase.seconds}, {"wait_s", phase.wait_s}};
}

nlohmann::ordered_json to_object(const ProfiledOp& op, const MachinePeaks& peaks) {
  return {{"op", op.op},
          {"phase", op.phase},
          {"backward", op.backward},
          {"dtype", c10::toString(op.dtype)},
          {"calls", op.calls},
          {"flops", op.flops},
          {"bytes", op.bytes},
          {"seconds", op.seconds},
          {"least_seconds", op.least_seconds(peaks)},
          {"limit", to_string(op.limit(peaks))}};
}

template <class Record, class... Context>
nlohmann::ordered_json to_array(const std::vector<Record>& records, const Context&... context) {
  auto rows = nlohmann::ordered_json::array();
  for (const Record& record : records) rows.push_back(to_object(record, context...));
  return rows;
}

nlohmann::ordered_json memory_json(const TensorTimeline& memory) {
  const TensorTimeline::Moment peak = memory.peak();
  nlohmann::ordered_json json = {{"peak_bytes", peak.bytes}};
  for (size_t kind = 0; kind < tensor_kinds; ++kind)
    json["peak_by_kind"][std::string(to_string(static_cast<TensorKind>(kind)))] = peak.by_kind[kind];
  for (const TensorLife& tensor : memory.tensors) {
    if (!tensor.alive_after(peak.event)) continue;
    auto& bytes = json["peak_by_module"][tensor.module.empty() ? "(model)" : tensor.module];
    bytes = tensor.bytes + (bytes.is_null() ? 0 : bytes.get<int64_t>());
  }
  return json;
}

}  // namespace

std::string_view to_string(Limit limit) {
  return limit_names[index_of(limit)];
}

double ProfiledOp::least_seconds(const MachinePeaks& peaks) const {
  return std::max({flops / peaks.flops(dtype), bytes / peaks.bytes_per_second, calls * peaks.call_s});
}

Limit ProfiledOp::limit(const MachinePeaks& peaks) const {
  const double least = least_seconds(peaks);
  // Starting threads takes much less than a millisecond. Longer calls are slow for other reasons.
  const bool overhead = least < overhead_share * seconds && seconds < 1e-3 * calls;
  if (calls * peaks.call_s >= least || overhead) return Limit::host;
  return flops / peaks.flops(dtype) >= least ? Limit::compute : Limit::memory;
}

double StepProfile::phase_seconds(std::string_view name) const {
  const auto found = std::ranges::find(phases, name, &StepPhase::name);
  return found == phases.end() ? 0 : found->seconds;
}

double StepProfile::wait_s() const {
  return total_wait(phases);
}

double TimedStep::wait_s() const {
  return total_wait(phases);
}

std::array<double, limits> StepProfile::seconds_by_limit() const {
  std::map<std::string, double> in_operators;
  for (const ProfiledOp& op : ops) in_operators[op.phase] += op.seconds;
  // Instruments make small operators slower, so that their times can exceed the time of the phase.
  std::map<std::string, double> scale;
  std::array<double, limits> result{};
  for (const StepPhase& phase : phases) {
    const double inside = in_operators[phase.name], own = std::max(0.0, phase.seconds - phase.wait_s);
    scale[phase.name] = inside > own ? own / inside : 1;
    const Limit rest = phase.name == loading_phase     ? Limit::loading
                       : phase.name == optimizer_phase ? Limit::memory
                                                       : Limit::host;
    result[index_of(rest)] += std::max(0.0, own - inside);
    result[index_of(Limit::communication)] += std::min(phase.wait_s, phase.seconds);
  }
  for (const ProfiledOp& op : ops) {
    const Limit limit = op.phase == loading_phase ? Limit::loading : op.limit(peaks);
    result[index_of(limit)] += op.seconds * scale[op.phase];
  }
  return result;
}

Limit StepProfile::limit() const {
  const auto seconds = seconds_by_limit();
  return static_cast<Limit>(std::ranges::max_element(seconds) - seconds.begin());
}

std::string StepProfile::verdict() const {
  const Limit most = limit();
  std::string name(to_string(most));
  name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return c10::str(name, " limits this step: ", percent(seconds_by_limit()[index_of(most)], step_s), " % of ",
                  format_seconds(step_s), ".");
}

std::string StepProfile::to_text(size_t rows) const {
  std::string text = verdict() + "\n" + phase_table(*this) + operator_table(*this, rows);
  text += list_of("implicit synchronizations in one step", sync_lines(*this), rows);
  text += list_of("copies that only change the order of elements, per step", copy_lines(*this), rows);
  text += list_of("sizes that are not multiples of 8, per step", size_lines(*this), rows);
  if (memory) text += "\n" + memory->to_string();
  return text;
}

std::string StepProfile::to_json() const {
  const auto by_limit = seconds_by_limit();
  nlohmann::ordered_json json = {{"limit", to_string(limit())},
                                 {"steps", steps},
                                 {"step_s", step_s},
                                 {"cpu_s", cpu_s},
                                 {"minor_faults", minor_faults},
                                 {"major_faults", major_faults}};
  for (size_t i = 0; i < limits; ++i) json["seconds_by_limit"][std::string(limit_names[i])] = by_limit[i];
  json["phases"] = to_array(phases);
  json["peaks"] = {{"fp32_flops", peaks.fp32_flops},
                   {"bf16_flops", peaks.bf16_flops},
                   {"bytes_per_second", peaks.bytes_per_second},
                   {"call_s", peaks.call_s}};
  json["ops"] = to_array(ops, peaks);
  json["synchronizations"] = to_array(syncs);
  json["copies"] = to_array(copies);
  json["odd_sizes"] = to_array(odd_sizes);
  json["batch_norms"] = to_array(batch_norms);
  json["convolutions"] = {{"contiguous_calls", convolutions.contiguous_calls},
                          {"contiguous_seconds", convolutions.contiguous_seconds},
                          {"channels_last_calls", convolutions.channels_last_calls}};
  json["recomputation"] = {{"calls", recomputation.calls},
                           {"flops", recomputation.flops},
                           {"bytes", recomputation.bytes},
                           {"seconds", recomputation.seconds}};
  if (memory) json["memory"] = memory_json(*memory);
  return json_text(json, 2);
}

}  // namespace bellows::inspect
