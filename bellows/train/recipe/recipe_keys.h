#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Upper limits of numbers that may be of any size.
constexpr double any_number = std::numeric_limits<double>::infinity();
constexpr double any_float = std::numeric_limits<float>::max();  // fp32 weights are computed with it

/// The allowed values: a range of numbers, or one text of a list (empty: any).
struct AllowedValues {
  constexpr AllowedValues(double from, double to) : low(from), high(to) {}
  constexpr AllowedValues(const char* list = "") : choices(list) {}
  double low = 0, high = any_number;
  std::string_view choices;  ///< "fp32, bf16"
};

/// A key of the recipe.
struct RecipeKey {
  const char* name;
  std::variant<int64_t Recipe::*, double Recipe::*, bool Recipe::*, std::string Recipe::*> member;
  AllowedValues allowed;
  const char* help;
  bool changes_bits = true;
  /// For a text that is written as a map in YAML: returns the map without braces, or "" if the value is no map.
  std::string (*as_map)(const std::string& value) = nullptr;
};

/// Returns the table by which recipes are parsed, printed, checked and documented, in the order of the struct's members.
std::span<const RecipeKey> recipe_keys();

struct RenamedKey {
  std::string_view former, now;
};

/// Returns the keys that have another name in older recipes.
std::span<const RenamedKey> renamed_keys();

}  // namespace bellows::train
