#pragma once

#include <functional>
#include <string>

#include "bellows/core/registry.h"
#include "bellows/system/machine.h"

namespace bellows::train {

struct Recipe;

/// How much the results with a technique may differ from those of the plain program.
enum class Exactness {
  exact,     ///< bit-identical
  rounding,  ///< the same mathematics, with a different order of operations or intermediate rounding
  /// Different mathematics. Such a technique is judged by whether and when training reaches the target accuracy.
  lossy,
};

/// The expected effect of a technique before it is measured. A factor below 1 means less time or memory.
struct Expectation {
  double time_factor = 1;    ///< factor for the time of a step, per sample
  double memory_factor = 1;  ///< factor for the peak memory
  std::string words;         ///< reason for the expectation, and its source
};

/// A row of the table of techniques: a named change of a recipe, with its conditions, expected effect and exactness.
struct Technique {
  std::string name;     ///< key, such as "channels_last"
  std::string title;    ///< title for tables, such as "channels-last"; its words have at most 17 letters
  std::string changes;  ///< one sentence that describes the change
  std::function<void(Recipe&)> apply;
  /// Returns an empty text if the technique applies to this recipe on this machine, and otherwise the reason why it
  /// does not apply. If there is no function, the technique always applies.
  std::function<std::string(const Recipe&, const Machine&)> obstacle = {};
  Expectation expected;
  Exactness exactness = Exactness::exact;
  std::string tolerance = {};  ///< description of the tolerance; empty for `exact`
  bool equal_batch = true;     ///< whether batch size and learning rate stay unchanged
  /// Whether the technique changes the course of training and not only the time of a step. Such a technique is judged
  /// only by the time to target, and is kept even if its throughput is lower.
  bool judged_by_target = false;
  bool is_about_loading = false;  ///< if true, the ladder reports the bottleneck of the loader
  /// Whether the technique is a rung of the memory ladder. If it is also expected to cost time, it is not a rung of the
  /// speed ladder.
  bool saves_memory = false;
  std::string source;  ///< paper or documentation that describes the technique
};

/// Returns "exact", "rounding" or "lossy".
std::string_view to_string(Exactness exactness);

/// Adds all techniques in the order of the ladder: first techniques that speed up execution, then techniques that
/// change the course of training, then techniques that save memory.
void register_techniques(Registry<Technique>& registry);

/// Returns the table of techniques, which is filled once.
/// Threads: may be called on any thread
const Registry<Technique>& technique_table();

/// Returns the table as a Markdown page with one section per technique.
std::string techniques_page(const Registry<Technique>& registry);

}  // namespace bellows::train
