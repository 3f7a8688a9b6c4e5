#include "cli/parse_problem.h"

#include <c10/util/StringUtil.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::cli {

namespace {

/// The names of the options of `app`, including those of its option groups, which CLI11 stores as nameless subcommands.
std::vector<std::string> names_of_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* group : app.get_subcommands({})) {
    if (!group->get_name().empty()) continue;
    const std::vector<std::string> more = names_of_options(*group);
    names.insert(names.end(), more.begin(), more.end());
  }
  return names;
}

/// Returns "" if `option` is not the name of a recipe key, such as --epochs or --batch-size.
std::string recipe_key(const std::string& option) {
  std::string key = option.substr(std::min(option.size(), option.find_first_not_of('-')));
  std::ranges::replace(key, '-', '_');
  for (const train::RecipeField& field : train::recipe_fields()) {
    if (field.name == key) return key;
  }
  return "";
}

std::string extra_problem(const CLI::App& verb) {
  const std::vector<CLI::App*> actions = verb.get_subcommands();
  const CLI::App& app = actions.empty() || actions.front()->get_name().empty() ? verb : *actions.front();
  const std::vector<std::string> extra = verb.remaining(true);
  const auto is_option = [](const std::string& word) { return word.starts_with("-"); };
  const auto found = std::ranges::find_if(extra, is_option);
  if (found == extra.end()) return c10::str("unexpected argument \"", extra.empty() ? "" : extra.front(), "\".");
  const std::string option = found->substr(0, found->find('='));
  const std::string key = app.get_option_no_throw("--set") ? recipe_key(option) : "";
  return c10::str("unknown option ", option, ".",
                  key.empty() ? did_you_mean(option, names_of_options(app))
                              : c10::str(" To set the recipe key ", key, ", use --set ", key, "=VALUE."));
}

std::string action_problem(const CLI::App& verb) {
  std::vector<std::string> actions;
  for (const CLI::App* action : verb.get_subcommands({})) actions.push_back(action->get_name());
  const std::vector<std::string> extra = verb.remaining();
  const std::string all = " The actions are: " + c10::Join(", ", actions) + ".";
  if (extra.empty()) return "an action is missing." + all;
  return c10::str("unknown action \"", extra.front(), "\".", did_you_mean(extra.front(), actions), all);
}

/// Splits `text` at the first `separator`. Returns false if `text` does not contain it.
bool split(const std::string& text, std::string_view separator, std::string& before, std::string& after) {
  const size_t at = text.find(separator);
  if (at == text.npos) return false;
  before = text.substr(0, at);
  after = text.substr(at + separator.size());
  return true;
}

std::string list_of(std::string names) {
  for (size_t at = names.find(','); at != names.npos; at = names.find(',', at + 2)) names.replace(at, 1, ", ");
  const size_t last = names.rfind(", ");
  return last == names.npos ? names : names.replace(last, 2, " and ");
}

}  // namespace

std::string parse_problem(const CLI::ParseError& error, const CLI::App& verb) {
  std::string text = error.what(), before, after;
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) return extra_problem(verb);
  if (text == "A subcommand is required") return action_problem(verb);
  if (split(text, "Exactly 1 option from [", before, after)) {
    return "set exactly one of " + list_of(after.substr(0, after.find(']'))) + ".";
  }
  if (text.ends_with(" missing") && split(text, ": 1 required ", before, after)) {
    return before + " needs a value: " + before + " " + after.substr(0, after.rfind(' ')) + ".";
  }
  if (split(text, ": At Most 1 required but received ", before, after)) {
    return before + " is set " + after + " times. Set it once.";
  }
  if (split(text, " excludes ", before, after)) return before + " cannot be combined with " + after + ".";
  if (split(text, "Could not convert: ", before, after)) text = after.replace(after.find(" = "), 3, ": invalid value ");
  return text.ends_with(".") ? text : text + ".";
}

}  // namespace bellows::cli
