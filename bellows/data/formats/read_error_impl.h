#pragma once

#include <c10/util/Exception.h>

#include "bellows/core/error.h"

namespace bellows::data {

/// Calls `read` and says in what it throws which sample it was. The kind of error stays: a bad sample is a
/// c10::ValueError, a network that fails another c10::Error.
/// Params: where – makes the words: "sample 7"
template <class Where, class Read>
void read_naming(const Where& where, const Read& read) {
  try {
    read();
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "read: ", where(), ": ", user_message(error));
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "read: ", where(), ": ", user_message(error));
  }
}

}  // namespace bellows::data
