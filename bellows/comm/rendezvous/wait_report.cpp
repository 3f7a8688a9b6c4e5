#include "bellows/comm/rendezvous/wait_report.h"

#include "bellows/core/log.h"

namespace bellows::comm {

void WaitReport::report(const std::function<std::string()>& what) {
  const double waited = waited_s();
  if (waited < next_s_) return;
  next_s_ = 2 * waited;
  const std::string limit = timeout_s_ > 0 ? c10::str(" s of ", timeout_s_, " s") : " s";
  log_warn(who_, " is waiting for ", what(), " (", static_cast<int64_t>(waited), limit, ")");
}

}  // namespace bellows::comm
