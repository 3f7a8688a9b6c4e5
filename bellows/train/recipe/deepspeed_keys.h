#pragma once

#include <span>
#include <string_view>

namespace bellows::train {

/// The type that a value must have. A section contains keys of the table. A feature is reported as a whole.
enum class DeepSpeedKind { boolean, integer, number, text, list, section, feature, any };

/// A key of DeepSpeed's JSON configuration, and the values that need no recipe key.
struct DeepSpeedKey {
  std::string_view path;  ///< such as "zero_optimization.stage"
  DeepSpeedKind kind;
  /// The values that are not reported, as JSON separated by commas, because Bellows behaves in this way or because they
  /// are DeepSpeed's defaults. "*": all values, also for keys that are imported. For a feature, the name of its switch;
  /// "" if the feature is on when it has any key.
  std::string_view harmless = "*";
  std::string_view advice = "";      ///< reason and workaround for all other values
  std::string_view recipe_key = "";  ///< the recipe key of the same setting; "" if there is none
};

/// Returns all keys in DeepSpeed's documentation, and others that its code reads.
std::span<const DeepSpeedKey> deepspeed_keys();

/// Returns null if the table does not have the key.
const DeepSpeedKey* find_deepspeed_key(std::string_view path);

}  // namespace bellows::train
