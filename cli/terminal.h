#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::cli {

enum class Colour { none, bold, dim, green, yellow, red };

/// Prints results to standard output, and progress to standard error. Control characters are written only to terminals.
class Terminal {
 public:
  Terminal();
  ~Terminal();

  /// Prints a result to standard output.
  void print(std::string_view text);
  /// Shows the current progress. On a terminal, one status line is redrawn. If standard error is not a terminal, a line
  /// is written each time `stage` changes.
  void status(const std::string& stage, const std::string& detail);
  /// Like status(), but shows `line` on a terminal, truncated to the current width of the terminal.
  void live(const std::string& stage, std::string line);
  /// Returns the text with the color for a terminal. If standard output is not a terminal, or NO_COLOR is set, returns
  /// the text unchanged.
  std::string paint(Colour colour, std::string_view text) const;

 private:
  void clear_status();

  bool out_terminal_, error_terminal_, colours_;
  bool status_open_ = false;
  std::string stage_;
};

/// Writes all of the text to standard output.
/// Throws: c10::Error if standard output is closed or its disk is full
void print_result(std::string_view text);

/// Like print_result(), but does not throw.
/// Returns: 0, or the error number of the first write that failed in this process
int write_result(std::string_view text);

/// Returns the text as one word for a POSIX shell, in quotes if necessary.
std::string shell_word(const std::string& text);

/// Prints "bellows: " and the message to standard error. On a terminal, the message is wrapped to lines of at most 79
/// characters.
void print_error(const std::string& message);

/// Returns the width of a text on a terminal. Each character counts as one column.
size_t display_width(std::string_view utf8);
/// Adds spaces on the left until the text is `width` columns wide. Longer text does not change.
std::string pad_left(std::string_view text, size_t width);
/// Like pad_left(), but adds the spaces on the right.
std::string pad_right(std::string_view text, size_t width);
/// Breaks `text` at spaces into lines of at most `width` columns.
std::vector<std::string> wrap(std::string_view text, size_t width);
/// Returns the text in lines of at most 79 columns. Each line begins with `indent` and ends with a line break.
std::string wrapped(std::string_view text, std::string_view indent = "");
/// Replaces line breaks with spaces. Messages of other libraries have line breaks.
std::string one_line(std::string text);
/// Formats one number like printf, for example number("%.1f", x). Returns "-" if the number is not finite.
std::string number(const char* format, double value);
/// Formats a number with two decimals below 10, one below 100, and none above. Returns "-" if it is not finite.
std::string brief_number(double value);
/// Returns how many percent of `whole` a part is, with one decimal. Returns "-" if `whole` is 0.
std::string share_of(int64_t part, int64_t whole);

}  // namespace bellows::cli
