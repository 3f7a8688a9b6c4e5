#pragma once

#include <c10/util/Exception.h>

namespace bellows::train {

/// Thrown if the keys of a recipe are valid but do not fit its model. The command exits with code 2, as for other
/// usage errors.
class RecipeError : public c10::ValueError {
 public:
  using ValueError::ValueError;
};

/// Throws: RecipeError with the concatenated arguments if `holds` is false
template <class... Words>
void check_recipe(bool holds, const Words&... words) {
  if (!holds) throw RecipeError({__func__, __FILE__, __LINE__}, c10::str(words...));
}

}  // namespace bellows::train
