#pragma once

#include <functional>
#include <string>

#include "bellows/core/registry.h"
#include "bellows/system/machine.h"

namespace bellows::train {

struct Recipe;

/// How much results with a technique may differ from those of the plain program.
enum class Exactness {
  exact,     ///< bit-identical
  rounding,  ///< same mathematics, another order of operations or other intermediate rounding
  lossy,     ///< different mathematics: judged by whether and when training reaches the target accuracy
};

/// The expected effect of a technique, before measurement: a factor below 1 is less.
struct Expectation {
  double time_factor = 1;    ///< time of a step, per sample
  double memory_factor = 1;  ///< peak memory
  std::string words;         ///< reason and source
};

/// A row of the table of techniques: a named change of a recipe, with its conditions, expected effect and exactness.
struct Technique {
  std::string name;     ///< key: "channels_last"
  std::string title;    ///< for tables: "channels-last"; words have at most 17 letters
  std::string changes;  ///< one sentence that describes it
  std::function<void(Recipe&)> apply;
  /// Returns "" if the technique applies to this recipe on this machine, else the reason why not. If there is no
  /// function, it always applies.
  std::function<std::string(const Recipe&, const Machine&)> obstacle = {};
  Expectation expected;
  Exactness exactness = Exactness::exact;
  std::string tolerance = {};  ///< description; empty for `exact`
  bool equal_batch = true;     ///< batch size and learning rate do not change
  /// Changes the course of training, not only the time of a step. So it is judged by the time to target only, and kept
  /// even if its throughput is lower.
  bool judged_by_target = false;
  bool is_about_loading = false;  ///< the ladder reports the loader's bottleneck for it
  /// Also a rung of the memory ladder. If it is expected to cost time, it is a rung of that ladder only.
  bool saves_memory = false;
  std::string source;  ///< paper or documentation
};

/// "exact", "rounding", "lossy".
std::string_view to_string(Exactness exactness);

/// Whether the processor has bfloat16 matrix multiplication (AMX-BF16, AVX512-BF16 or Arm's BF16). Others emulate it.
bool has_bf16_arithmetic(const Machine& machine);

/// Adds all techniques in the order of the ladder: faster execution first, then other courses of training, then memory.
void register_techniques(Registry<Technique>& registry);

/// The table of techniques, filled once. Threads: any
const Registry<Technique>& technique_table();

/// The table as a Markdown page with one section per technique.
std::string techniques_page(const Registry<Technique>& registry);

}  // namespace bellows::train
