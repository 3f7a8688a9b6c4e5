#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bellows::cli {

enum class Colour { none, bold, dim, green, yellow, red };

/// Standard output for results, standard error for what is going on. Control characters go to terminals only.
class Terminal {
 public:
  Terminal();
  ~Terminal();

  void print(std::string_view text);
  /// One line that is drawn again and again on a terminal. Elsewhere a line is written when `stage` changes.
  void status(const std::string& stage, const std::string& detail);
  /// The same with a line of its own; what does not fit on the terminal, as wide as it is now, is left out.
  void live(const std::string& stage, std::string line);
  /// Coloured on a terminal, unless NO_COLOR is set.
  std::string paint(Colour colour, std::string_view text) const;

 private:
  void clear_status();

  bool out_terminal_, error_terminal_, colours_;
  bool status_open_ = false;
  std::string stage_;
};

/// Writes to standard output, all of it.
/// Throws: c10::Error – it is closed, or what is behind it is full
void print_result(std::string_view text);

/// The text as one word of a POSIX shell: in quotes where it needs them.
std::string shell_word(const std::string& text);

/// "bellows: " and the message to standard error; on a terminal broken at spaces into lines of 79 letters.
void print_error(const std::string& message);

/// Columns on a screen: letters, not bytes.
size_t display_width(std::string_view utf8);
/// Padded with spaces to `width`; longer text stays as it is.
std::string pad_left(std::string_view text, size_t width);
std::string pad_right(std::string_view text, size_t width);
/// `text` broken at spaces into lines of at most `width` letters.
std::vector<std::string> wrap(std::string_view text, size_t width);
/// printf for one number: number("%.1f", x); "-" when it is not finite.
std::string number(const char* format, double value);

}  // namespace bellows::cli
