#pragma once

/// Internal to the component: avoids that Observer reports an operator again when an OpTap dispatches it again.
namespace bellows::tap {

/// The schema name (compared by address) of the operator that an OpTap on this thread is about to dispatch again, or
/// null.
inline thread_local const char* redispatched_operator = nullptr;

}  // namespace bellows::tap
