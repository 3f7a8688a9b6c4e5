#pragma once

#include <gmock/gmock.h>

#include <string>

#include "process.h"

namespace bellows::cli {

/// Expects that a command failed with this exit code and a message that has these words, but not where the error was thrown.
inline void expect_failure(const Outcome& outcome, int exit_code, const std::string& words) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, ::testing::HasSubstr("bellows: "));
  EXPECT_THAT(outcome.err, ::testing::HasSubstr(words));
  for (const char* machinery : {".cpp", "frame #", "Exception raised"})
    EXPECT_THAT(outcome.err, ::testing::Not(::testing::HasSubstr(machinery)));
}

}  // namespace bellows::cli
