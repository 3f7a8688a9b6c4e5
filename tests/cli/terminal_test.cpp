#include "cli/terminal.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <string>

namespace bellows::cli {

TEST(Terminal, PadsByLettersNotBytes) {
  EXPECT_EQ(display_width("1.3±0.1"), 7u);
  EXPECT_EQ(pad_left("±1", 4), "  ±1");
  EXPECT_EQ(pad_right("±1", 4), "±1  ");
  EXPECT_EQ(pad_left("longer", 3), "longer");
}

TEST(Terminal, WrapsAtSpaces) {
  EXPECT_EQ(wrap("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(wrap("unbreakable", 4), (std::vector<std::string>{"unbreakable"}));
  EXPECT_EQ(wrap("", 4), (std::vector<std::string>{""}));
}

TEST(Terminal, NumbersThatAreNone) {
  EXPECT_EQ(number("%.2f", 1.234), "1.23");
  EXPECT_EQ(number("%.2f", std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(number("%.2f", std::numeric_limits<double>::infinity()), "-");
}

TEST(Terminal, QuotesWordsForTheShell) {
  EXPECT_EQ(shell_word("runs/a-1_b.c"), "runs/a-1_b.c");
  for (const std::string word : {"my runs", "it's", "", "$HOME", "a;b", "a\nb", "~", "*"}) {
    const std::string command = "printf %s " + shell_word(word);
    FILE* shell = ::popen(command.c_str(), "r");
    ASSERT_TRUE(shell);
    char said[64] = {};
    const size_t bytes = std::fread(said, 1, sizeof said, shell);
    EXPECT_EQ(::pclose(shell), 0);
    EXPECT_EQ(std::string(said, bytes), word) << command;
  }
}

}  // namespace bellows::cli
