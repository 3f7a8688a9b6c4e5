#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bellows/train/recipe/recipe.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using train::RecipeField;

constexpr size_t key_columns = 31, key_help_columns = 69;  // 100 together

std::string key_help(const RecipeField& field) {
  const bool numeric = field.type == "integer" || field.type == "number";
  std::string values = numeric ? field.type + ", " + field.allowed : field.allowed;
  if (values.empty()) values = field.type;
  return field.help + " (" + values + ")";
}

/// The lines of one key. A default that does not fit into the last line gets its own.
std::string key_lines(const RecipeField& field) {
  std::vector<std::string> lines = wrap(key_help(field), key_help_columns);
  const std::string standard = " [default: " + field.default_value + "]";
  if (display_width(lines.back()) + display_width(standard) <= key_help_columns) {
    lines.back() += standard;
  } else {
    lines.push_back(standard.substr(1));
  }
  std::string text = pad_right("  " + field.name, key_columns) + lines.front() + "\n";
  for (size_t i = 1; i < lines.size(); ++i) text += std::string(key_columns, ' ') + lines[i] + "\n";
  return text;
}

nlohmann::ordered_json key_json(const RecipeField& field) {
  auto standard = nlohmann::ordered_json::parse(field.default_value, nullptr, /*allow_exceptions=*/false);
  if (field.type == "text" && !standard.is_string()) standard = field.default_value;  // YAML has no quotes around it
  return {{"key", field.name},
          {"type", field.type},
          {"values", field.allowed},
          {"default", standard},
          {"description", field.help}};
}

}  // namespace

int run_recipe_keys(const JsonTarget& target) {
  check_output_file(target);
  std::string text;
  nlohmann::ordered_json keys = nlohmann::ordered_json::array();
  for (const RecipeField& field : train::recipe_fields()) {
    text += key_lines(field);
    keys.push_back(key_json(field));
  }
  if (target != "-") print_result(text);
  write_json(target, json_text(keys));
  return exit_done;
}

}  // namespace bellows::cli
