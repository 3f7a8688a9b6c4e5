#pragma once

/// Internal: prevents Observer from reporting an operator twice when an OpTap dispatches it again.
namespace bellows::tap {

/// The schema name of the operator that an OpTap on this thread is about to dispatch again, or null. Names are compared
/// by address.
inline thread_local const char* redispatched_operator = nullptr;

}  // namespace bellows::tap
