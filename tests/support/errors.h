#pragma once

#include <functional>
#include <string>

#include "bellows/core/error.h"

namespace bellows {

/// What a user would read of the error that `action` throws; "no error" when it throws none, which no test expects.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return user_message(error);
  }
  return "no error";
}

}  // namespace bellows
