#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/stats.h"

namespace bellows::cli {

namespace {

/// The width of the terminal on standard error.
size_t error_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

}  // namespace

Terminal::Terminal() : out_terminal_(isatty(STDOUT_FILENO) == 1), error_terminal_(isatty(STDERR_FILENO) == 1) {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  colours_ = out_terminal_ && !(no_colour && *no_colour) && !(kind && std::string_view(kind) == "dumb");
}

Terminal::~Terminal() {
  clear_status();
}

void Terminal::clear_status() {
  if (status_open_) std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  status_open_ = false;
}

void Terminal::print(std::string_view text) {
  clear_status();
  print_result(text);
}

void Terminal::status(const std::string& stage, const std::string& detail) {
  live(stage, detail.empty() ? stage : stage + ", " + detail);
}

void Terminal::live(const std::string& stage, std::string line) {
  if (error_terminal_) {
    line.resize(prefix_bytes(line, error_columns() - 1));
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    std::fflush(stderr);
    status_open_ = true;
  } else if (stage != stage_) {
    std::fprintf(stderr, "%s\n", stage.c_str());
  }
  stage_ = stage;
}

std::string Terminal::paint(Colour colour, std::string_view text) const {
  static constexpr std::array codes = {"", "\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[31m"};
  if (!colours_ || colour == Colour::none) return std::string(text);
  return codes.at(static_cast<size_t>(colour)) + std::string(text) + "\033[0m";
}

int write_result(std::string_view text) {
  static int first_error = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written && first_error == 0) first_error = errno;
  return first_error;
}

void print_result(std::string_view text) {
  const int error = write_result(text);
  TORCH_CHECK(error == 0, "cannot write to standard output: ", errno_message(error), ".");
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,@%+=";
  if (!text.empty() && text.find_first_not_of(plain) == text.npos) return text;
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

void print_error(const std::string& message) {
  std::string text;
  for (const std::string& line :
       isatty(STDERR_FILENO) == 1 ? wrap("bellows: " + message, 79) : std::vector<std::string>{"bellows: " + message}) {
    text += line + "\n";
  }
  std::fputs(text.c_str(), stderr);
}

size_t display_width(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

std::string pad_left(std::string_view text, size_t width) {
  const size_t wide = display_width(text);
  return std::string(wide < width ? width - wide : 0, ' ') + std::string(text);
}

std::string pad_right(std::string_view text, size_t width) {
  const size_t wide = display_width(text);
  return std::string(text) + std::string(wide < width ? width - wide : 0, ' ');
}

std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    if (!lines.back().empty() && display_width(lines.back()) + 1 + display_width(word) > width) lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    lines.back() += word;
  }
  return lines;
}

std::string wrapped(std::string_view text, std::string_view indent) {
  std::string lines;
  for (const std::string& line : wrap(text, 79 - indent.size())) lines += std::string(indent) + line + "\n";
  return lines;
}

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string number(const char* format, double value) {
  return std::isfinite(value) ? format_number(format, value) : "-";
}

std::string brief_number(double value) {
  return number(value < 9.995 ? "%.2f" : value < 99.95 ? "%.1f" : "%.0f", value);
}

std::string share_of(int64_t part, int64_t whole) {
  return number("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace bellows::cli
