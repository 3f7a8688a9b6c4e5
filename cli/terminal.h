#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bellows::cli {

enum class Colour { none, bold, dim, green, yellow, red };

/// Prints results to standard output, and progress to standard error. Control characters are only sent to terminals.
class Terminal {
 public:
  Terminal();
  ~Terminal();

  void print(std::string_view text);
  /// Shows a status line, which is redrawn on a terminal. Elsewhere, a line is written when `stage` changes.
  void status(const std::string& stage, const std::string& detail);
  /// Like status(), with a complete line, which is truncated to the current width of the terminal.
  void live(const std::string& stage, std::string line);
  /// Adds color on a terminal, unless NO_COLOR is set.
  std::string paint(Colour colour, std::string_view text) const;

 private:
  void clear_status();

  bool out_terminal_, error_terminal_, colours_;
  bool status_open_ = false;
  std::string stage_;
};

/// Writes the complete text to standard output.
/// Throws: c10::Error if standard output is closed or its disk is full
void print_result(std::string_view text);

/// Like print_result(), but does not throw. Returns: 0, or the error number of the first failed write in this process
int write_result(std::string_view text);

/// Quotes the text as one word of a POSIX shell if necessary.
std::string shell_word(const std::string& text);

/// Prints "bellows: " and the message to standard error. On a terminal, the message is wrapped at 79 letters.
void print_error(const std::string& message);

/// The width on a screen: letters, not bytes.
size_t display_width(std::string_view utf8);
/// Pads with spaces to `width`; longer text does not change.
std::string pad_left(std::string_view text, size_t width);
std::string pad_right(std::string_view text, size_t width);
/// Breaks `text` at spaces into lines of at most `width` letters.
std::vector<std::string> wrap(std::string_view text, size_t width);
/// printf for one number: number("%.1f", x); "-" if it is not finite.
std::string number(const char* format, double value);

}  // namespace bellows::cli
