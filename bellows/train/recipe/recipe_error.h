#pragma once

#include <c10/util/Exception.h>

namespace bellows::train {

/// A recipe whose keys are each right, but not for its model: the command says so with exit code 2, as of any wrong use.
class RecipeError : public c10::ValueError {
 public:
  using ValueError::ValueError;
};

/// Throws: RecipeError – what the words say, unless `holds`
template <class... Words>
void check_recipe(bool holds, const Words&... words) {
  if (!holds) throw RecipeError({__func__, __FILE__, __LINE__}, c10::str(words...));
}

}  // namespace bellows::train
