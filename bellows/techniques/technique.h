#pragma once

#include <functional>
#include <string>

#include "bellows/core/registry.h"
#include "bellows/system/machine.h"

namespace bellows::train {

struct Recipe;

/// How far results with a technique may be from the plain path's.
enum class Exactness {
  exact,     ///< bit for bit
  rounding,  ///< the same mathematics, summed in another order
  lossy,     ///< other mathematics: judged by whether, and how soon, the target accuracy is reached
};

/// What a technique is expected to do, before anybody measures: below 1 is less.
struct Expectation {
  double time_factor = 1;    ///< of a step, per sample
  double memory_factor = 1;  ///< of the peak
  std::string words;         ///< why, and where it comes from
};

/// One row of the table of techniques: a named change of a recipe, with when it applies, what it should bring, and how
/// exact it is.
struct Technique {
  std::string name;     ///< key: "channels_last"
  std::string title;    ///< for tables, at most 17 letters: "channels-last"
  std::string changes;  ///< what it does, in a sentence
  std::function<void(Recipe&)> apply;
  /// Answers with nothing when the technique applies to this recipe on this machine; otherwise why it does not. No
  /// function: it always applies.
  std::function<std::string(const Recipe&, const Machine&)> obstacle = {};
  Expectation expected;
  Exactness exactness = Exactness::exact;
  std::string tolerance = {};  ///< in words; for `exact`, empty
  bool equal_batch = true;     ///< batch size and learning rate stay as they are
  /// It changes what a step does, not only how long one takes: judged by the time to the target alone, and kept even if
  /// it makes fewer samples a second.
  bool judged_by_target = false;
  bool is_about_loading = false;  ///< the ladder says of it where the loader's time goes
  bool saves_memory = false;  ///< a rung of the ladder of memory, too; of that one alone if it is expected to cost time
  std::string source;         ///< paper or document
};

/// "exact", "rounding", "lossy".
std::string_view to_string(Exactness exactness);

/// The processor multiplies bfloat16 matrices itself (AMX-BF16, AVX512-BF16 or Arm's BF16); others emulate it.
bool has_bf16_arithmetic(const Machine& machine);

/// Adds all techniques, in the order in which the ladder climbs them: what computes the same faster, what
/// trains otherwise, what saves memory.
void register_techniques(Registry<Technique>& registry);

/// The same table, filled once. Threads: any
const Registry<Technique>& technique_table();

/// The table as a Markdown page: one section a technique.
std::string techniques_page(const Registry<Technique>& registry);

}  // namespace bellows::train
