#pragma once

#include <c10/util/Exception.h>

namespace bellows::train {

/// Thrown if a recipe's keys are valid, but do not fit its model. The command ends with exit code 2, as for other usage
/// errors.
class RecipeError : public c10::ValueError {
 public:
  using ValueError::ValueError;
};

/// Throws: RecipeError with the text of the arguments, unless `holds` is true
template <class... Words>
void check_recipe(bool holds, const Words&... words) {
  if (!holds) throw RecipeError({__func__, __FILE__, __LINE__}, c10::str(words...));
}

}  // namespace bellows::train
