#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "bellows/inspect/tensor_timeline.h"
#include "bellows/train/recipe/recipe.h"

// Shared by the strategies that divide the model.
namespace bellows::train {

/// Whether the recipe would be valid with this mesh and DDP.
inline bool accepts_mesh(Recipe recipe, const std::string& mesh) {
  if (recipe.data_parallel != "ddp") return false;
  recipe.mesh = mesh;
  try {
    recipe.validate();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

/// Whether tensors of this kind belong to parameters, so that ranks which divide the model divide them.
inline bool has_parameters(inspect::TensorKind kind) {
  using inspect::TensorKind;
  return kind == TensorKind::weight || kind == TensorKind::gradient || kind == TensorKind::optimizer ||
         kind == TensorKind::master || kind == TensorKind::weight_copy;
}

}  // namespace bellows::train
