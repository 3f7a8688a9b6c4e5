#pragma once

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

namespace bellows {

/// Every element that is opened is closed, in order. (`text` has no comments.)
inline void expect_well_formed(const std::string& text) {
  static const std::regex tag("<(/?)([a-zA-Z0-9]+)([^<>]*?)(/?)>");
  std::vector<std::string> open;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), tag); it != std::sregex_iterator(); ++it) {
    const std::string name = (*it)[2];
    if ((*it)[4].length() > 0 || name == "meta") continue;
    if ((*it)[1].length() == 0) {
      open.push_back(name);
    } else {
      ASSERT_FALSE(open.empty()) << name;
      ASSERT_EQ(open.back(), name);
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

}  // namespace bellows
