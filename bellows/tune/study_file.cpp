#include "bellows/tune/study_file.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/io/tables/number_text.h"
#include "bellows/report/json_text.h"
#include "bellows/system/file.h"

namespace bellows::tune {

namespace {

using train::Recipe;

constexpr std::string_view model_prefix = "model.";

/// A node of the file with its place, for error messages.
struct Place {
  std::string where;
  YAML::Node node;

  std::string line() const { return c10::str("tune: ", where, ", line ", node.Mark().line + 1, ": "); }
  Place at(const YAML::Node& part) const { return {where, part}; }
};

std::string scalar(const Place& place, const std::string& key) {
  TORCH_CHECK_VALUE(place.node.IsScalar(), place.line(), key, ": expected one value, got a list or a map.");
  return place.node.Scalar();
}

double number(const Place& place, const std::string& key) {
  const std::string text = scalar(place, key);
  const std::optional<double> value = io::parse_float(text);
  TORCH_CHECK_VALUE(value && std::isfinite(*value), place.line(), key, ": expected a number, got \"", text, "\".");
  return *value;
}

enum class Unit { none, time, bytes, any };

/// A number with an optional unit of bytes (2GB, 512MB) or time (90s, 5min, 2h).
double quantity(const Place& place, const std::string& key, Unit allowed) {
  static const std::map<std::string, double> units = {
      {"", 1},  {"b", 1},      {"kb", 1024.0}, {"mb", 1048576.0}, {"gb", 1073741824.0}, {"tb", 1099511627776.0},
      {"s", 1}, {"min", 60.0}, {"h", 3600.0}};
  const std::string text = scalar(place, key);
  const size_t end = std::min(text.find_first_not_of("0123456789.eE+-"), text.size());
  std::string unit = lower_case(std::string_view(text).substr(end));
  std::erase(unit, ' ');
  const std::optional<double> value = io::parse_float(std::string_view(text).substr(0, end));
  const auto factor = units.find(unit);
  const bool is_time = unit == "s" || unit == "min" || unit == "h";
  const bool fits = unit.empty() || allowed == Unit::any || allowed == (is_time ? Unit::time : Unit::bytes);
  constexpr std::array examples = {"20", "90s or 2h", "2GB or 512MB", "0.95, 2GB or 90s"};
  TORCH_CHECK_VALUE(value && std::isfinite(*value) && factor != units.end() && fits, place.line(), key,
                    ": expected a number such as ", examples.at(static_cast<size_t>(allowed)), ", got \"", text, "\".");
  return *value * factor->second;
}

/// Calls `use(key, place)` for each item of a map. Keys must be in `known`, unless `known` is empty.
template <class Use>
void each_item(const Place& place, const std::string& name, const std::vector<std::string>& known, Use use) {
  TORCH_CHECK_VALUE(place.node.IsMap(), place.line(), name, ": expected lines of the form `key: value`.");
  std::set<std::string> seen;
  for (const auto& item : place.node) {
    const std::string key = scalar(place.at(item.first), name);
    const Place here = place.at(item.first);
    TORCH_CHECK_VALUE(seen.insert(key).second, here.line(), "the key \"", key, "\" occurs twice. Remove one of them.");
    const bool valid = known.empty() || std::find(known.begin(), known.end(), key) != known.end();
    TORCH_CHECK_VALUE(valid, here.line(), "unknown key \"", key, "\".", did_you_mean(key, known));
    use(key, place.at(item.second));
  }
}

// ---- the search space

void read_range(const Place& place, const std::string& kind, Parameter& parameter) {
  const std::string expected =
      parameter.name + ": expected a range such as [0.001, 0.1], with the smaller number first";
  TORCH_CHECK_VALUE(place.node.IsSequence() && place.node.size() == 2, place.line(), expected, ".");
  parameter.low = number(place.at(place.node[0]), parameter.name);
  parameter.high = number(place.at(place.node[1]), parameter.name);
  TORCH_CHECK_VALUE(parameter.low <= parameter.high, place.line(), expected, ", got [", parameter.low, ", ",
                    parameter.high, "].");
  parameter.log = kind.ends_with("log") || kind.starts_with("log");
  if (kind.ends_with("integer")) parameter.kind = Parameter::Kind::integer;
}

Parameter read_parameter(const std::string& name, const Place& place) {
  Parameter parameter{.name = name};
  if (place.node.IsSequence()) {
    parameter.kind = Parameter::Kind::choice;
    for (const YAML::Node& choice : place.node) parameter.choices.push_back(scalar(place.at(choice), name));
    parameter.high = std::max(0.0, static_cast<double>(parameter.choices.size()) - 1);
    return parameter;
  }
  int64_t ranges = 0;
  std::optional<double> step;
  each_item(place, name, {"uniform", "log", "integer", "log_integer", "step", "points"},
            [&](const std::string& key, const Place& here) {
              if (key == "step") {
                step = number(here, name + ".step");
              } else if (key == "points") {
                const double points = number(here, name + ".points");
                TORCH_CHECK_VALUE(points == std::floor(points) && points < 1e9, here.line(), name,
                                  ".points: expected an integer, got ", points, ".");
                parameter.points = static_cast<int64_t>(points);
              } else {
                read_range(here, key, parameter), ++ranges;
              }
            });
  parameter.step = step.value_or(parameter.kind == Parameter::Kind::integer ? 1 : 0);
  TORCH_CHECK_VALUE(ranges == 1, place.line(), name,
                    ": expected a list of values, or exactly one of uniform, log, integer and log_integer.");
  return parameter;
}

std::vector<double> ends_of(const Parameter& parameter) {
  return parameter.kind == Parameter::Kind::choice ? parameter.grid()
                                                   : std::vector<double>{parameter.low, parameter.high};
}

/// Calls `action`. Its errors name the line of the study file instead of `origin`.
template <class Action>
void with_line(const Place& place, std::string_view origin, Action action) {
  try {
    action();
  } catch (const c10::Error& error) {
    std::string words = user_message(error);
    if (words.starts_with(origin)) words = words.substr(origin.size());
    TORCH_CHECK_VALUE(false, place.line(), words);
  }
}

/// Sets one key of a recipe.
void set_key(Recipe& recipe, const std::string& name, const std::string& value, const Place& place) {
  with_line(place, "recipe: command line: ", [&] { recipe.set(name + "=" + value); });
}

void check_against_recipe(const Parameter& parameter, const Place& place, Recipe recipe) {
  const std::vector<train::RecipeField> fields = train::recipe_fields();
  const auto field = std::find_if(fields.begin(), fields.end(),
                                  [&](const train::RecipeField& row) { return row.name == parameter.name; });
  if (field == fields.end()) return set_key(recipe, parameter.name, "", place);  // throws the error of unknown keys
  const bool fits = parameter.kind == Parameter::Kind::choice ||
                    (parameter.kind == Parameter::Kind::integer && field->type == "integer") || field->type == "number";
  TORCH_CHECK_VALUE(fits, place.line(), parameter.name, ": the key is of type \"", field->type, "\", so it needs ",
                    field->type == "integer" ? "a range `integer` or `log_integer`, or " : "", "a list of values.");
  for (const double end : ends_of(parameter)) set_key(recipe, parameter.name, parameter.text(end), place);
}

void check_against_model(const Parameter& parameter, const Place& place, const StudyFile& file) {
  TORCH_CHECK_VALUE(!file.model_config.empty(), place.line(), parameter.name,
                    ": options of the model need a recipe whose key model is the path of a config.json.");
  const auto config = nlohmann::json::parse(file.model_config);
  std::vector<std::string> keys;
  for (const auto& [key, value] : config.items()) keys.push_back(key);
  const std::string key = parameter.name.substr(model_prefix.size());
  TORCH_CHECK_VALUE(config.contains(key), place.line(), "the model's config.json has no key \"", key, "\".",
                    did_you_mean(key, keys));
}

void read_space(const Place& place, StudyFile& file) {
  each_item(place, "space", {}, [&](const std::string& name, const Place& here) {
    const Parameter parameter = read_parameter(name, here);
    with_line(here, "tune: ", [&] { SearchSpace{{parameter}}.check(); });
    if (name.starts_with(model_prefix)) {
      check_against_model(parameter, here, file);
    } else {
      check_against_recipe(parameter, here, file.recipe);
    }
    file.study.space.parameters.push_back(parameter);
  });
}

// ---- the other keys

void read_objective(const Place& place, StudyOptions& study) {
  if (place.node.IsScalar()) {
    study.objective = place.node.Scalar();
    study.maximize = study.objective == "accuracy";
    static const std::vector<std::string> known = {"accuracy", "loss", "time_to_target", "train_seconds",
                                                   "seconds",  "cost", "peak_memory"};
    TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), study.objective) != known.end(), place.line(),
                      "the metric \"", study.objective, "\" has no default direction.",
                      did_you_mean(study.objective, known),
                      " For metrics of the task, write {maximize: NAME} or "
                      "{minimize: NAME}.");
    return;
  }
  TORCH_CHECK_VALUE(place.node.IsMap() && place.node.size() == 1, place.line(),
                    "objective: expected a metric, {minimize: METRIC} or {maximize: METRIC}.");
  each_item(place, "objective", {"minimize", "maximize"}, [&](const std::string& key, const Place& here) {
    study.objective = scalar(here, "objective"), study.maximize = key == "maximize";
  });
}

void read_constraints(const Place& place, StudyOptions& study) {
  each_item(place, "constraints", {}, [&](const std::string& metric, const Place& here) {
    Constraint constraint{.metric = metric};
    each_item(here, metric, {"at_least", "at_most"}, [&](const std::string& key, const Place& bound) {
      (key == "at_least" ? constraint.at_least : constraint.at_most) = quantity(bound, metric, Unit::any);
    });
    TORCH_CHECK_VALUE(std::isfinite(constraint.at_least) || std::isfinite(constraint.at_most), here.line(), metric,
                      ": expected at_least, at_most or both, got none.");
    TORCH_CHECK_VALUE(constraint.at_least <= constraint.at_most, here.line(), "the constraint of ", metric,
                      " cannot be satisfied, because at_least is greater than at_most.");
    study.constraints.push_back(constraint);
  });
}

void read_halving(const Place& place, StudyOptions& study) {
  HalvingOptions halving;
  each_item(place, "halving", {"first_rung", "factor"}, [&](const std::string& key, const Place& here) {
    const double value = number(here, "halving." + key), least = key == "factor" ? 2 : 1;
    TORCH_CHECK_VALUE(value >= least && value == std::floor(value) && value < 1e9, here.line(), "halving.", key,
                      ": expected an integer of at least ", least, ", got ", value, ".");
    (key == "factor" ? halving.factor : halving.first_rung) = static_cast<int64_t>(value);
  });
  study.halving = halving;
}

void read_recipe(const Place& place, const std::string& folder, StudyFile& file) {
  if (place.node.IsScalar()) {
    file.recipe = Recipe::load((std::filesystem::path(folder) / place.node.Scalar()).string());
  } else {
    YAML::Emitter text;
    text << place.node;
    file.recipe = Recipe::parse(text.c_str(), place.where + ", recipe");
  }
  if (!file.recipe.model.ends_with(".json")) return;
  file.model_config = read_text_file(file.recipe.model);
  TORCH_CHECK_VALUE(nlohmann::json::parse(file.model_config, nullptr, /*allow_exceptions=*/false).is_object(),
                    place.line(), file.recipe.model, ": expected a JSON object, found other text. Correct the file.");
}

void read_limit(const std::string& key, const Place& place, StudyFile& file) {
  const Unit unit = key == "trial_time" ? Unit::time : key == "trial_memory" ? Unit::bytes : Unit::none;
  const double value = quantity(place, key, unit), least = key == "trials" || key == "ranks" ? 1 : 0;
  const bool count = key == "trials" || key == "seed" || key == "ranks";
  TORCH_CHECK_VALUE(value >= least && value <= 9e15 && (!count || value == std::floor(value)), place.line(), key,
                    ": expected ", count ? "an integer" : "a number", " of at least ", least, ", got ", value, ".");
  if (key == "trials") file.trials = static_cast<int64_t>(value);
  if (key == "ranks") file.ranks = static_cast<int64_t>(value);
  if (key == "seed") file.study.seed = static_cast<uint64_t>(value);
  if (key == "trial_time") file.trial_seconds = value;
  if (key == "trial_memory") file.trial_bytes = static_cast<int64_t>(value);
  if (key == "price_per_hour") file.price_per_hour = value;
}

/// Time to target is comparable only among runs that reach the target, so reaching it is a constraint.
void add_target(StudyFile& file, const std::string& where) {
  auto& all = file.study.constraints;
  const auto uses = [&](const char* metric) {
    return file.study.objective == metric ||
           std::any_of(all.begin(), all.end(), [&](const Constraint& c) { return c.metric == metric; });
  };
  TORCH_CHECK_VALUE(!uses("cost") || file.price_per_hour > 0, "tune: ", where,
                    ": the metric cost needs price_per_hour.");
  if (!uses("time_to_target")) return;
  TORCH_CHECK_VALUE(file.recipe.target_accuracy > 0, "tune: ", where,
                    ": the metric time_to_target needs the recipe key target_accuracy, such as 0.97.");
  const bool given = std::any_of(all.begin(), all.end(), [&](const Constraint& c) {
    return c.metric == "accuracy" && c.at_least >= file.recipe.target_accuracy;
  });
  if (!given) all.push_back({.metric = "accuracy", .at_least = file.recipe.target_accuracy});
}

StudyFile read_study(const Place& root, const std::string& folder) {
  StudyFile file;
  const YAML::Node& node = root.node;
  TORCH_CHECK_VALUE(node.IsMap(), root.line(), "expected lines of the form `key: value`, such as `space:`.");
  if (node["recipe"].IsDefined()) read_recipe(root.at(node["recipe"]), folder, file);
  each_item(root, "study",
            {"recipe", "space", "objective", "constraints", "sampler", "halving", "trials", "ranks", "seed",
             "trial_time", "trial_memory", "price_per_hour"},
            [&](const std::string& key, const Place& place) {
              if (key == "recipe") return;
              if (key == "space") return read_space(place, file);
              if (key == "objective") return read_objective(place, file.study);
              if (key == "constraints") return read_constraints(place, file.study);
              if (key == "halving") return read_halving(place, file.study);
              if (key != "sampler") return read_limit(key, place, file);
              file.study.sampler = scalar(place, key);
              with_line(place, "tune: ", [&] { check_sampler(file.study.sampler); });
            });
  TORCH_CHECK_VALUE(!file.study.space.parameters.empty(), "tune: ", root.where,
                    ": the search space is empty. Add recipe keys under `space:`.");
  add_target(file, root.where);
  file.study.context = file.recipe.to_yaml() + file.model_config;
  if (file.ranks > 1) file.study.context += c10::str("ranks: ", file.ranks, "\n");
  if (file.price_per_hour > 0) file.study.context += c10::str("price_per_hour: ", io::float_text(file.price_per_hour));
  return file;
}

}  // namespace

StudyFile parse_study(const std::string& text, const std::string& where, const std::string& folder) {
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    TORCH_CHECK_VALUE(false, "tune: ", where, ", line ", error.mark.line + 1,
                      ": the file is not valid YAML: ", error.msg, ".");
  }
  return read_study({where, root}, folder);
}

StudyFile load_study(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return parse_study(read_text_file(path), path, folder.empty() ? "." : folder.string());
}

Recipe recipe_of(const StudyFile& file, const Assignment& values) {
  Recipe recipe = file.recipe;
  for (size_t i = 0; i < values.size(); ++i) {
    const Parameter& parameter = file.study.space.parameters[i];
    if (!parameter.name.starts_with(model_prefix)) recipe.set(parameter.name + "=" + parameter.text(values[i]));
  }
  recipe.validate();
  return recipe;
}

std::string model_config_of(const StudyFile& file, const Assignment& values) {
  const std::vector<Parameter>& all = file.study.space.parameters;
  const auto of_model = [](const Parameter& parameter) { return parameter.name.starts_with(model_prefix); };
  if (std::none_of(all.begin(), all.end(), of_model)) return "";
  auto config = nlohmann::ordered_json::parse(file.model_config);
  for (size_t i = 0; i < values.size(); ++i) {
    const Parameter& parameter = file.study.space.parameters[i];
    if (!parameter.name.starts_with(model_prefix)) continue;
    // Numbers and true or false are written as such, all other choices as text.
    const std::string text = parameter.text(values[i]);
    const auto value = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    config[parameter.name.substr(model_prefix.size())] = value.is_discarded() ? nlohmann::ordered_json(text) : value;
  }
  return json_text(config, 2);
}

void set_model(Recipe& recipe, const StudyFile& file, const Assignment& values, const std::string& path) {
  const std::string config = model_config_of(file, values);
  if (config.empty()) return;
  recipe.model = path;
  write_text_file(path, config);
}

}  // namespace bellows::tune
