#include "bellows/train/run/step_trace.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "bellows/comm/collectives.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/system/trace_request.h"

namespace bellows::train {

namespace {

constexpr int64_t most_steps = 1000;

bool read_number(std::string_view text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0;
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

StepRange parse_range(std::string_view text, std::string_view all) {
  const size_t dash = text.find('-');
  StepRange range;
  const bool whole = read_number(trimmed(text.substr(0, dash)), range.first) &&
                     (dash == std::string_view::npos || read_number(trimmed(text.substr(dash + 1)), range.last));
  TORCH_CHECK_VALUE(whole, "trace_steps: expected step numbers of at least 1, such as \"10-12,50\", got \"", text,
                    "\" in \"", all, "\".");
  if (dash == std::string_view::npos) range.last = range.first;
  TORCH_CHECK_VALUE(range.first <= range.last, "trace_steps: \"", text, "\" is in descending order. Write ", range.last,
                    "-", range.first, ".");
  TORCH_CHECK_VALUE(range.last - range.first < most_steps, "trace_steps: \"", text, "\" is longer than ", most_steps,
                    " steps, which is too long for trace viewers. Choose fewer steps.");
  return range;
}

}  // namespace

std::vector<StepRange> parse_steps(std::string_view text) {
  std::vector<StepRange> ranges;
  if (trimmed(text).empty()) return ranges;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    ranges.push_back(parse_range(trimmed(text.substr(begin, end - begin)), text));
    begin = end + 1;
  }
  std::sort(ranges.begin(), ranges.end(), [](const StepRange& a, const StepRange& b) { return a.first < b.first; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    TORCH_CHECK_VALUE(ranges[i - 1].last < ranges[i].first, "trace_steps: step ", ranges[i].first,
                      " is in two ranges of \"", text, "\". Merge the ranges.");
  }
  return ranges;
}

StepTrace::StepTrace(std::string_view steps, std::string folder, const comm::Group* ranks)
    : folder_(std::move(folder)), ranks_(ranks), ranges_(parse_steps(steps)) {
  TORCH_CHECK_VALUE(ranges_.empty() || !folder_.empty(), "trace_steps: the traces need a folder. Set run_folder.");
}

StepTrace::~StepTrace() {
  if (!tracer_) return;
  try {
    write(/*with_others=*/false);
  } catch (const std::exception& error) {
    log_warn(user_message(error));
  }
}

void StepTrace::take_request(int64_t step) {
  const int64_t steps = take_trace_request();
  if (steps <= 0) return;
  if (folder_.empty()) {
    log_warn("trace: a trace was requested, but the run has no folder for it. Set run_folder.");
    return;
  }
  requested_ = {step, step + std::min(steps, most_steps) - 1};
  log_info("trace: recording steps ", requested_.first, " to ", requested_.last, ".");
}

void StepTrace::before(int64_t step) {
  take_request(step);
  if (!tracer_) {
    const auto covers = [step](const StepRange& range) { return range.first <= step && step <= range.last; };
    if (!covers(requested_) && std::none_of(ranges_.begin(), ranges_.end(), covers)) return;
    tracer_ = std::make_unique<inspect::StepTracer>();
    loader_ = std::make_shared<TraceWriter>();
    first_ = step;
    last_ = 0;
  }
  step_start_us_ = trace_now_us();
}

void StepTrace::after(int64_t step) {
  if (!tracer_) return;
  tracer_->writer().add({c10::str("step ", step), "step", step_start_us_, trace_now_us() - step_start_us_, 0, ""});
  last_ = step;
  const bool range_ends =
      std::any_of(ranges_.begin(), ranges_.end(), [&](const StepRange& range) { return range.last == step; });
  if (range_ends || step == requested_.last) write(/*with_others=*/range_ends);  // other ranks have no such request
}

void StepTrace::write(bool with_others) {
  const std::unique_ptr<inspect::StepTracer> tracer = std::move(tracer_);  // released even if writing fails
  const std::shared_ptr<TraceWriter> loader = std::move(loader_);
  if (last_ == 0) return;
  tracer->writer().append(*loader);
  std::string of_rank;
  if (ranks_) {
    tracer->writer().name_process(c10::str("rank ", ranks_->rank()));
    if (!with_others) of_rank = c10::str("-rank", ranks_->rank());
  }
  if (ranks_ && with_others) {
    const std::vector<std::string> all = comm::all_gather_strings(tracer->writer().records(), *ranks_);
    if (ranks_->rank() > 0) return;
    for (size_t rank = 1; rank < all.size(); ++rank) tracer->writer().append(all[rank]);
  }
  std::error_code ignored;  // write() reports the error
  std::filesystem::create_directories(folder_, ignored);
  const std::string path = std::filesystem::path(folder_) / c10::str("trace-", first_, "-", last_, of_rank, ".json");
  tracer->write(path);
  log_info("trace: steps ", first_, " to ", last_, " in ", path, ". Open the file in ui.perfetto.dev.");
}

}  // namespace bellows::train
