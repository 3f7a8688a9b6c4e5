#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "cli/terminal.h"

namespace bellows::cli {

/// Expects that no line of `text` has more columns.
inline void expect_narrow(const std::string& text, size_t columns = 80) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), columns) << line;
}

}  // namespace bellows::cli
