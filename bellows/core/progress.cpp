#include "bellows/core/progress.h"

#include "bellows/core/log.h"

namespace bellows {

Progress::Progress(std::string label, int64_t total, std::string unit)
    : label_(std::move(label)), unit_(std::move(unit)), total_(total), start_(Clock::now()), last_report_(start_) {}

Progress::~Progress() {
  if (!finished_) report(true);
}

void Progress::advance(int64_t units, std::string_view detail) {
  done_ += units;
  detail_ = detail;
  if (Clock::now() - last_report_ >= std::chrono::milliseconds(100)) report(false);
}

void Progress::finish(std::string_view detail) {
  detail_ = detail;
  report(true);
}

void Progress::report(bool finished) {
  last_report_ = Clock::now();
  finished_ = finished;
  const double seconds = std::chrono::duration<double>(last_report_ - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done_) / seconds : 0;
  const double eta_s = total_ > 0 && rate > 0 ? static_cast<double>(total_ - done_) / rate : -1;
  report_progress({.label = label_,
                   .done = done_,
                   .total = total_,
                   .unit = unit_,
                   .rate = rate,
                   .eta_s = eta_s,
                   .detail = detail_,
                   .finished = finished});
}

}  // namespace bellows
