#include "bellows/comm/call_log.h"

#include <c10/util/Exception.h>

#include "bellows/comm/group_impl.h"
#include "bellows/report/trace_writer.h"

namespace bellows::comm {

std::string call_name(const std::string& what) {
  return what.substr(0, what.find(' '));
}

void CallRecords::start() {
  const MutexLock lock(mutex_);
  TORCH_CHECK_VALUE(!on_, "CallLog: this world already has a log. Destroy it first.");
  on_ = true;
}

void CallRecords::stop() {
  const MutexLock lock(mutex_);
  on_ = false;
  first_ += static_cast<int64_t>(calls_.size());
  calls_.clear();
}

int64_t CallRecords::begin(const std::string& group, const std::string& what, int64_t bytes) {
  const MutexLock lock(mutex_);
  if (!on_) return -1;
  calls_.push_back({.name = call_name(what), .group = group, .bytes = bytes, .start_us = trace_now_us()});
  return first_ + static_cast<int64_t>(calls_.size()) - 1;
}

void CallRecords::end(int64_t number) {
  const double now = trace_now_us();
  const MutexLock lock(mutex_);
  if (number < first_ || number >= first_ + static_cast<int64_t>(calls_.size())) return;
  double& end_us = calls_[static_cast<size_t>(number - first_)].end_us;
  if (end_us == 0) end_us = now;
}

std::vector<RecordedCall> CallRecords::finished() const {
  const MutexLock lock(mutex_);
  std::vector<RecordedCall> result = calls_;
  std::erase_if(result, [](const RecordedCall& call) { return call.end_us == 0; });
  return result;
}

CallLog::CallLog(const Group& group) : watchdog_(group.state()->watchdog) {
  if (watchdog_) watchdog_->records().start();
}

CallLog::~CallLog() {
  if (watchdog_) watchdog_->records().stop();
}

std::vector<RecordedCall> CallLog::calls() const {
  return watchdog_ ? watchdog_->records().finished() : std::vector<RecordedCall>();
}

}  // namespace bellows::comm
