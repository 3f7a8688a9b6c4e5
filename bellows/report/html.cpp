#include "bellows/report/html.h"

namespace bellows {

namespace {

constexpr std::string_view page_style = R"(
:root { color-scheme: light dark;
  --paper: #faf8f5; --card: #ffffff; --ink: #22262b; --soft: #59616b; --line: #e3ded7; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #15171a; --card: #1d2024; --ink: #e9e6e1; --soft: #a6adb6; --line: #33373d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 20px 64px; }
h2 { font-size: 1.05rem; margin: 0 0 2px; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg text { fill: var(--ink); }
.key { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 6px 0 2px; font-size: 0.85rem; color: var(--soft); }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 550; }
)";

}  // namespace

std::string escape_html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < ' ' && c != '\n' ? ' ' : c;
    }
  }
  return result;
}

std::string begin_page(std::string_view title, std::string_view style) {
  std::string page =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>";
  page.append(escape_html(title)).append("</title>\n<style>").append(page_style).append(style);
  return page.append("</style>\n</head>\n<body>\n<main>\n");
}

}  // namespace bellows
