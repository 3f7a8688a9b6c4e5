#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/comm/mesh.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Checks the keys for training on several ranks, and their combinations with other keys.
/// Params: where – name of the text in messages, such as a path
/// Throws: c10::ValueError if a combination is not supported; the message says what to change
void check_rank_keys(const Recipe& recipe, const std::string& where);

/// Replaces batch_size_per_rank by the batch_size of all ranks. Ranks of the mesh axes `pipeline`, `context` and `tensor`
/// read the same samples.
Recipe with_total_batch(Recipe recipe, int64_t ranks);

/// Parses the key `mesh`, such as "data: 2, shard: 2". The axes are `data` and `shard`, whose sizes are 1 if they are
/// missing. The axes `pipeline`, `context` and `tensor` follow, in this order, if their sizes are above 1; the axis
/// `shard` is then left out if its size is 1. The order does not depend on that of the text. The result is empty if the
/// text is empty.
/// Params: where – name of the text in messages
/// Throws: c10::ValueError if the text has another form, an axis is unknown (the message suggests one) or occurs twice,
///         or if there are more than 2^24 ranks
std::vector<comm::MeshAxis> parse_mesh(const std::string& text, const std::string& where = "recipe: mesh");
/// Returns the size of an axis, or 1 if it does not exist.
int axis_size(const std::vector<comm::MeshAxis>& axes, const std::string& name);
/// Returns the number of ranks that read the same samples: those of the axes `pipeline`, `context` and `tensor`.
int ranks_per_sample(const std::vector<comm::MeshAxis>& axes);
int ranks_per_sample(const Recipe& recipe);
/// Returns the number of ranks that read different samples.
/// Params: ranks – number of all ranks
int64_t data_ranks(const Recipe& recipe, int64_t ranks);

/// Returns the setting with which optimizer_in_backward does not work on several ranks, with the reason; empty if there
/// is none. See also optimizer_in_backward_conflict().
std::string backward_steps_conflict(const Recipe& recipe);
/// Returns why the optimizer cannot update parts of parameters separately; empty if it can.
std::string whole_parameters_conflict(const Recipe& recipe);
/// Returns the setting that is not supported if ranks read the same samples, with the reason; empty if there is none.
std::string shared_samples_conflict(const Recipe& recipe);
/// The same if these ranks also run the same operators, as those of the axes `context` and `tensor`.
std::string shared_operators_conflict(const Recipe& recipe);
/// Throws: c10::ValueError if a conflict of the recipe with an axis of its mesh is not empty
void check_axis(const Recipe& recipe, const std::string& where, const std::string& axis, const std::string& conflict);
/// Returns the text without braces and quotation marks, which maps in YAML have.
std::string without_braces(std::string text);
/// Returns the text from which parse_mesh() reads the axes.
std::string mesh_text(const std::vector<comm::MeshAxis>& axes);

}  // namespace bellows::train
