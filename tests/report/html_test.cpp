#include "bellows/report/html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bellows {

TEST(Html, TextStaysText) {
  EXPECT_EQ(escape_html("a < b && \"c\" > d\n"), "a &lt; b &amp;&amp; &quot;c&quot; &gt; d\n");
  EXPECT_EQ(escape_html(std::string_view("a\0b\tc", 5)), "a b c");
  EXPECT_EQ(escape_html("größer"), "größer");
}

TEST(Html, APageBeginsWithItsTitleAndStyle) {
  const std::string page = begin_page("<model>", "h1 { color: red; }");
  EXPECT_THAT(page, testing::StartsWith("<!doctype html>"));
  EXPECT_THAT(page, testing::HasSubstr("<title>&lt;model&gt;</title>"));
  EXPECT_THAT(page, testing::HasSubstr("prefers-color-scheme: dark"));
  EXPECT_LT(page.find("--paper"), page.find("h1 { color: red; }")) << "rules of the page come last";
  EXPECT_THAT(page, testing::EndsWith("<main>\n"));
}

}  // namespace bellows
