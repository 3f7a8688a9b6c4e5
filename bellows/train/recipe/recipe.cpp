#include "bellows/train/recipe/recipe.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <variant>

#include "bellows/core/error.h"
#include "bellows/io/tables/number_text.h"
#include "bellows/system/file.h"
#include "bellows/train/recipe/key_checks.h"
#include "bellows/train/recipe/recipe_keys.h"
#include "bellows/train/recipe/recipe_overlay.h"

namespace bellows::train {

namespace {

std::string former_name_of(std::string_view key) {
  for (const RenamedKey& renamed : renamed_keys()) {
    if (renamed.now == key) return std::string(renamed.former);
  }
  return "";
}

/// The origin of a value, for messages.
struct Origin {
  std::string_view where;
  int line = 0;  ///< 0 if unknown
  std::string text() const { return line > 0 ? c10::str(where, ", line ", line) : std::string(where); }
};

const char* type_of(const RecipeKey& row) {
  constexpr const char* names[] = {"integer", "number", "true or false", "text"};
  return names[row.member.index()];
}

std::string number_text(double value) {
  if (std::abs(value) < 1e15 && value == std::floor(value)) return std::to_string(static_cast<int64_t>(value));
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string allowed_of(const RecipeKey& row) {
  const auto& [low, high, choices] = row.allowed;
  if (row.member.index() > 1) return std::string(choices);
  return high >= any_float ? "at least " + number_text(low) : number_text(low) + " to " + number_text(high);
}

std::vector<std::string> choices_of(const RecipeKey& row) {
  std::vector<std::string> result;
  for (std::string_view rest = row.allowed.choices; !rest.empty();) {
    const size_t comma = rest.find(", ");
    result.emplace_back(rest.substr(0, comma));
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 2);
  }
  return result;
}

std::string expectation(const RecipeKey& row) {
  if (row.member.index() == 2) return "true or false";
  if (!row.allowed.choices.empty()) return "one of: " + allowed_of(row);
  return c10::str(row.member.index() == 0 ? "an integer" : "a number", " of ", allowed_of(row));
}

[[noreturn]] void refuse(const RecipeKey& row, std::string_view value, const Origin& origin,
                         const std::string& hint = "") {
  C10_THROW_ERROR(ValueError, c10::str("recipe: ", origin.text(), ": ", row.name, " = \"", value, "\": expected ",
                                       expectation(row), ".", hint));
}

template <class T>
bool parse_number(std::string_view text, T& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

void check(const RecipeKey& row, const Recipe& recipe, const Origin& origin) {
  std::visit(
      [&](auto member) {
        const auto& value = recipe.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          const auto choices = choices_of(row);
          const bool known = choices.empty() || std::find(choices.begin(), choices.end(), value) != choices.end();
          if (!known) refuse(row, value, origin, did_you_mean(value, choices));
        } else if constexpr (!std::is_same_v<T, bool>) {
          const auto number = static_cast<double>(value);
          if (!(number >= row.allowed.low && number <= row.allowed.high) || std::isinf(number))
            refuse(row, number_text(number), origin, number > any_float ? " Larger numbers do not fit into fp32." : "");
        }
      },
      row.member);
}

void assign(const RecipeKey& row, Recipe& recipe, const std::string& text, const Origin& origin) {
  std::visit(
      [&](auto member) {
        auto& value = recipe.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          value = text;
        } else if constexpr (std::is_same_v<T, bool>) {
          if (text != "true" && text != "false") refuse(row, text, origin);
          value = text == "true";
        } else if (!parse_number(text, value)) {
          refuse(row, text, origin);
        }
      },
      row.member);
  check(row, recipe, origin);
}

const RecipeKey& find_row(const std::string& key, const Origin& origin) {
  std::vector<std::string> names;
  std::string all;
  for (const RecipeKey& row : recipe_keys()) {
    if (row.name == key) return row;
    names.emplace_back(row.name);
    all += (all.empty() ? "" : ", ") + names.back();
  }
  for (const RenamedKey& renamed : renamed_keys()) {
    TORCH_CHECK_VALUE(renamed.former != key, "recipe: ", origin.text(), ": unknown key \"", key,
                      "\". The key is now called ", renamed.now, ".");
  }
  const std::string nearest = did_you_mean(key, names);
  C10_THROW_ERROR(ValueError, c10::str("recipe: ", origin.text(), ": unknown key \"", key, "\".",
                                       nearest.empty() ? " Known keys: " + all + "." : nearest));
}

// ---- values in YAML

/// Whether YAML reads the text back unchanged without quotes.
bool plain_in_yaml(const std::string& text) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./";
  return !text.empty() && letters.find(text[0]) != std::string_view::npos && YAML::Load(text).IsScalar() &&
         text.find_first_not_of(std::string(letters) + "-{},") == std::string::npos;
}

constexpr const char* binary_tag = "tag:yaml.org,2002:binary";

/// File names may contain any bytes, but YAML text is UTF-8.
std::string quoted_in_yaml(const std::string& text) {
  YAML::Emitter emitter;
  if (!io::is_utf8(text)) {
    emitter << YAML::Binary(reinterpret_cast<const unsigned char*>(text.data()), text.size());
    return emitter.c_str();
  }
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

/// The text of a scalar; "" for null.
std::string text_in_yaml(const YAML::Node& value) {
  if (value.IsNull()) return "";
  if (value.Tag() != binary_tag) return value.Scalar();
  const auto bytes = value.as<YAML::Binary>();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// "a, b" for a list of texts.
std::string list_in_yaml(const YAML::Node& list, const Origin& origin, const std::string& key) {
  std::string text;
  for (const auto& item : list) {
    TORCH_CHECK_VALUE(item.IsScalar(), "recipe: ", origin.text(), ": ", key,
                      ": expected a list of texts, got a list or a map inside the list.");
    text += (text.empty() ? "" : ", ") + item.Scalar();
  }
  return text;
}

/// "a: 1, b: 2" for a map.
std::string map_in_yaml(const YAML::Node& map) {
  std::string text;
  for (const auto& item : map)
    text += c10::str(text.empty() ? "" : ", ", item.first.as<std::string>(""), ": ", item.second.as<std::string>(""));
  return text;
}

std::string value_text(const RecipeKey& row, const Recipe& recipe) {
  return std::visit(
      [&](auto member) -> std::string {
        const auto& value = recipe.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          const std::string map = row.as_map ? row.as_map(value) : "";
          if (!map.empty()) return "{" + map + "}";
          return plain_in_yaml(value) ? value : quoted_in_yaml(value);
        } else if constexpr (std::is_same_v<T, bool>) {
          return value ? "true" : "false";
        } else if constexpr (std::is_same_v<T, double>) {
          return number_text(value);
        } else {
          return std::to_string(value);
        }
      },
      row.member);
}

/// Returns `recipe` with the settings in the text.
Recipe parse_over(Recipe recipe, std::string_view text, std::string_view where) {
  TORCH_CHECK_VALUE(text.find('\0') == std::string_view::npos, "recipe: ", where, ": the file is not a text file.");
  YAML::Node root;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    TORCH_CHECK_VALUE(documents.size() <= 1, "recipe: ", where, ": expected one YAML document, found ",
                      documents.size(), ", separated by `---`. Keep only one.");
    if (!documents.empty()) root = documents.front();
  } catch (const YAML::Exception& error) {
    TORCH_CHECK_VALUE(false, "recipe: ", where, ", line ", error.mark.line + 1,
                      ": the file is not valid YAML: ", error.msg, ".");
  }
  if (root.IsNull()) return recipe;
  TORCH_CHECK_VALUE(root.IsMap(), "recipe: ", where, ": expected lines of the form `key: value`, found other content.");
  std::set<std::string> seen;
  for (const auto& item : root) {
    const Origin origin{where, item.first.Mark().line + 1};
    TORCH_CHECK_VALUE(item.first.IsScalar(), "recipe: ", origin.text(), ": expected a key, got a list or a map.");
    const std::string& key = item.first.Scalar();
    const RecipeKey& row = find_row(key, origin);
    TORCH_CHECK_VALUE(seen.insert(key).second, "recipe: ", origin.text(), ": the key \"", key, "\" occurs twice.");
    const bool is_map = item.second.IsMap() && row.as_map, is_list = item.second.IsSequence() && key == "augment";
    TORCH_CHECK_VALUE(is_map || is_list || item.second.IsScalar() || item.second.IsNull(), "recipe: ", origin.text(),
                      ": ", key, ": expected one value (", type_of(row), "), got a list or a map.");
    const std::string value = is_map    ? map_in_yaml(item.second)
                              : is_list ? list_in_yaml(item.second, origin, key)
                                        : text_in_yaml(item.second);
    assign(row, recipe, value, origin);
  }
  TORCH_CHECK_VALUE(!seen.contains("require_seed") || !recipe.require_seed || seen.contains("seed"), "recipe: ", where,
                    ": require_seed = true, but the key seed is missing. Add a line such as `seed: 1`.");
  check_keys_together(recipe, std::string(where));
  return recipe;
}

std::string recipe_text(const std::string& path) {
  std::string text = read_text_file(path);
  TORCH_CHECK_VALUE(text.find(':') != std::string::npos, "recipe: ", path,
                    ": expected lines of the form `key: value`, ", text.empty() ? "the file is empty." : "found none.");
  return text;
}

}  // namespace

Recipe Recipe::parse(std::string_view text, std::string_view where) {
  return parse_over({}, text, where);
}

Recipe Recipe::load(const std::string& path) {
  return parse_over({}, recipe_text(path), path);
}

Recipe load_over(const Recipe& base, const std::string& path) {
  return parse_over(base, recipe_text(path), path);
}

void Recipe::set(std::string_view key_equals_value) {
  const size_t equals = key_equals_value.find('=');
  const Origin origin{"command line"};
  TORCH_CHECK_VALUE(equals != std::string_view::npos, "recipe: ", origin.where, ": expected key=value, got \"",
                    key_equals_value, "\".");
  const RecipeKey& row = find_row(std::string(key_equals_value.substr(0, equals)), origin);
  assign(row, *this, std::string(key_equals_value.substr(equals + 1)), origin);
}

void Recipe::validate() const {
  for (const RecipeKey& row : recipe_keys()) check(row, *this, {"combined settings"});
  check_keys_together(*this, "combined settings");
}

std::string Recipe::to_yaml(bool comments) const {
  std::string text;
  for (const RecipeKey& row : recipe_keys()) {
    if (comments) {
      const std::string allowed = allowed_of(row);
      text += c10::str("# ", row.help, allowed.empty() ? "" : " (" + allowed + ")", "\n");
    }
    text += c10::str(row.name, ": ", value_text(row, *this), "\n");
  }
  return text;
}

std::vector<RecipeField> recipe_fields() {
  const Recipe defaults;
  std::vector<RecipeField> fields;
  for (const RecipeKey& row : recipe_keys()) {
    fields.push_back({row.name, type_of(row), allowed_of(row), value_text(row, defaults), row.help, row.changes_bits,
                      former_name_of(row.name)});
  }
  return fields;
}

std::string optimizer_in_backward_conflict(const Recipe& recipe) {
  if (recipe.data_parallel == "dp") return "data_parallel = dp adds the gradients of the replicas after backward";
  if (recipe.gradient_accumulation_steps > 1)
    return c10::str("gradient_accumulation_steps = ", recipe.gradient_accumulation_steps, " accumulates gradients");
  if (recipe.gradient_accumulation_dtype != "auto")
    return "gradient_accumulation_dtype = " + recipe.gradient_accumulation_dtype + " stores gradients";
  if (recipe.max_grad_norm > 0)
    return c10::str("max_grad_norm = ", recipe.max_grad_norm, " needs the norm of all gradients");
  if (recipe.max_grad_value > 0)
    return c10::str("max_grad_value = ", recipe.max_grad_value, " needs all gradients after backward");
  if (recipe.precision == "fp16") return "fp16 checks all gradients before each step";
  return recipe.on_nan == "skip" ? "on_nan = skip checks all gradients before each step" : "";
}

}  // namespace bellows::train
