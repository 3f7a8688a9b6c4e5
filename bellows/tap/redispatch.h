#pragma once

/// Internal to the component: lets OpTap and Observer agree on what is one operator.
namespace bellows::tap {

/// The schema's name (by address) of the operator that an OpTap is about to dispatch again on this thread, or null.
inline thread_local const char* redispatched_operator = nullptr;

}  // namespace bellows::tap
