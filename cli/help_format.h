#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "cli/terminal.h"

namespace bellows::cli {

// The layout of `--help`: one column for the names of options, one column for their descriptions, and a title above
// each group of options.

/// Returns the width of the help text: the width of the terminal, but at least 80 and at most 100 columns. If standard
/// output is not a terminal, the width is 80.
inline size_t help_columns() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return std::clamp<size_t>(known ? size.ws_col : 80, 80, 100);
}

/// Wraps the paragraphs of `text` to lines of at most `columns` columns. Indented lines, such as examples, do not
/// change.
inline std::string filled(const std::string& text, size_t columns) {
  std::string result, paragraph;
  const auto end_paragraph = [&] {
    if (paragraph.empty()) return;
    for (const std::string& line : wrap(paragraph, columns)) result += line + "\n";
    paragraph.clear();
  };
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == ' ') {
      end_paragraph();
      result += line + "\n";
    } else {
      paragraph += (paragraph.empty() ? "" : " ") + line;
    }
  }
  end_paragraph();
  return result;
}

/// Returns the lines that show one name and its description. A note in brackets at the end of the description, such as
/// the default, is not broken across lines.
inline std::string help_row(const std::string& name, const std::string& text, size_t columns) {
  constexpr size_t text_column = 28;
  const size_t width = columns - text_column, note_at = std::min(text.rfind(" ["), text.size());
  std::vector<std::string> lines = wrap(text.substr(0, note_at), width);
  const std::string note = text.substr(note_at);
  if (note.empty() || display_width(lines.back()) + display_width(note) <= width) {
    lines.back() += note;
  } else {
    lines.push_back(note.substr(1));
  }
  std::string head = "  " + name, rows;
  if (display_width(head) + 2 > text_column) {
    rows = head + "\n";
    head.clear();
  }
  for (const std::string& line : lines) {
    rows += pad_right(head, text_column) + line + "\n";
    head.clear();
  }
  return rows;
}

inline std::string option_row(const CLI::Option& option, size_t columns) {
  const bool positional = option.get_positional();
  std::string name = positional ? option.get_name(true, false) : option.get_name(false, true);
  const size_t comma = name.find(',');  // "-n,--ranks"
  if (comma != std::string::npos) name.insert(comma + 1, " ");
  const std::string type = option.get_type_name();
  if (!positional && !type.empty()) name += " " + type;
  const bool required = option.get_required() && !positional;
  return help_row(name, option.get_description() + (required ? " [required]" : ""), columns);
}

struct HelpSection {
  std::string title, rows;
};

/// Returns the options, sorted into groups. The order of the groups is the order of their first options. Options
/// without a group come last.
inline std::vector<HelpSection> option_sections(const CLI::App& app, size_t columns) {
  std::vector<const CLI::Option*> options;
  for (const CLI::App* part : app.get_subcommands({})) {
    if (!part->get_name().empty()) continue;  // a verb; parts without a name hold options that exclude each other
    for (const CLI::Option* option : part->get_options()) {
      if (option != part->get_help_ptr()) options.push_back(option);
    }
  }
  for (const CLI::Option* option : app.get_options()) options.push_back(option);
  std::vector<HelpSection> sections;
  HelpSection general{"General", ""};
  for (const CLI::Option* option : options) {
    if (option->get_positional()) continue;
    const std::string& group = option->get_group();
    if (group.empty()) continue;  // not for users
    const bool listed = std::ranges::find(sections, group, &HelpSection::title) != sections.end();
    if (!listed && group != "Options") sections.push_back({group, ""});
    auto section = std::ranges::find(sections, group, &HelpSection::title);
    (section == sections.end() ? general : *section).rows += option_row(*option, columns);
  }
  sections.push_back(std::move(general));
  return sections;
}

/// Returns the text of `--help` for the command or for one of its verbs (subcommands).
/// Params: name – full name of the command, such as "bellows train"
inline std::string help_text(const CLI::App* app, const std::string& name, CLI::AppFormatMode) {
  const size_t columns = help_columns();
  std::string usage = "Usage: " + name + " [OPTIONS]", arguments, verbs;
  for (const CLI::Option* option : app->get_options()) {
    if (!option->get_positional()) continue;
    const std::string word = option->get_name(true, false);
    const bool several = option->get_expected_max() > 1;
    usage += several && option->get_required() ? " -- " + word + "..." : several ? " [" + word + "...]" : " " + word;
    arguments += option_row(*option, columns);
  }
  for (const CLI::App* verb : app->get_subcommands({})) {
    if (!verb->get_name().empty()) verbs += help_row(verb->get_name(), verb->get_description(), columns);
  }
  std::string text = filled(app->get_description(), columns) + "\n" + usage + (verbs.empty() ? "" : " COMMAND") + "\n";
  if (!arguments.empty()) text += "\nArguments:\n" + arguments;
  if (!verbs.empty()) text += "\nCommands:\n" + verbs;
  for (const HelpSection& section : option_sections(*app, columns)) text += "\n" + section.title + ":\n" + section.rows;
  return text + "\n" + filled(app->get_footer(), columns);
}

}  // namespace bellows::cli
