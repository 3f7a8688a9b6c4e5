#pragma once

#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "cli/options.h"

namespace bellows::cli {

/// Returns the result of `read`, which uses options or reads the files that they name.
/// Throws: UsageError with the message of a c10::Error
template <class Read>
auto usable(Read read) {
  try {
    return read();
  } catch (const c10::Error& error) {
    throw UsageError(user_message(error));
  }
}

}  // namespace bellows::cli
