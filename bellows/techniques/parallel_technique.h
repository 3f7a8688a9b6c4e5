#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "bellows/core/registry.h"
#include "bellows/techniques/technique.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Maximum number of letters in a word of ParallelTechnique::title: the width of the column.
inline constexpr size_t parallel_title_width = 15;

/// A row of the table of techniques for several ranks: a change of a recipe that trains on several ranks or replicas. The
/// members are those of Technique.
struct ParallelTechnique {
  std::string name;
  std::string title;  ///< its words have at most parallel_title_width letters
  std::string changes;
  /// Params: ranks – number of ranks or replicas
  std::function<void(Recipe&, int ranks)> apply;
  /// Whether the technique trains replicas in one process instead of ranks.
  bool in_one_process = false;
  std::function<std::string(const Recipe&, int ranks)> obstacle = {};
  /// The factors are relative to one process with one thread per rank, and refer to one rank.
  Expectation expected;
  Exactness exactness = Exactness::rounding;
  std::string tolerance = {};
  std::string source;
};

/// Adds the techniques for several ranks, in the order in which the ladder measures them.
void register_parallel_techniques(Registry<ParallelTechnique>& registry);

/// Returns the table as Markdown, with one section per technique.
std::string techniques_page(const Registry<ParallelTechnique>& registry);

}  // namespace bellows::train
