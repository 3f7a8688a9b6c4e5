#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/shard_spec.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// Describes how tensor parallelism divides the parameters of a linear layer or an embedding among the ranks.
struct TensorStyle {
  enum class Cut {
    column,     ///< each rank computes some of the layer's outputs
    row,        ///< each rank reads some of the layer's inputs, and the ranks add their outputs
    vocabulary  ///< each rank holds some of the rows of an embedding table or of the output layer
  };
  Cut cut = Cut::column;
  /// Number of layers that the weight combines, such as 3 for query, key and value. Each of them is divided.
  int64_t parts = 1;
  bool transposed = false;  ///< the weight is stored as [in, out], as in GPT-2

  constexpr TensorStyle fused(int64_t count) const { return {cut, count, transposed}; }
  constexpr TensorStyle stored_transposed() const { return {cut, parts, true}; }
  bool operator==(const TensorStyle&) const = default;
};

/// The names of the values of TensorStyle::Cut.
inline constexpr const char* tensor_cut_names[] = {"column", "row", "vocabulary"};

inline constexpr TensorStyle column{TensorStyle::Cut::column};
inline constexpr TensorStyle row{TensorStyle::Cut::row};
inline constexpr TensorStyle vocabulary{TensorStyle::Cut::vocabulary};

/// Maps patterns to styles, such as {"*.query", column}. A pattern is the name of a module or of a parameter. In it, `*`
/// matches any characters. The style then applies to the weight and the bias of each matching module. The bias of a row
/// layer stays complete.
using TensorPlan = std::vector<std::pair<std::string, TensorStyle>>;

/// Returns the plan for a model of the component models: bert, distilbert, gpt or encoder_decoder, with any head. It
/// recognizes the model by its parameter names, so it also serves your own models with the same names.
/// Params: divide_vocabulary – also divide the embedding table and the output layer. The logits then are not complete on
///                             any rank; use parallel::cross_entropy()
/// Throws: c10::ValueError if the names are those of no such model
TensorPlan tensor_plan(const Model& model, bool divide_vocabulary = true);

/// How one parameter is divided along one dim. This is the same on all ranks.
struct TensorCut {
  std::string name;  ///< first name of the parameter in the model
  at::Tensor parameter;
  TensorStyle style;
  int64_t dim = 0;
  std::vector<int64_t> sizes;  ///< sizes of the complete parameter

  /// Returns the ranges of a rank along `dim`, as pairs of begin and length in the complete tensor.
  std::vector<std::pair<int64_t, int64_t>> ranges(int rank, int ranks) const;
  /// Returns the boxes of a rank.
  std::vector<comm::ShardSpec> boxes(int rank, int ranks) const;
};

/// Finds the parameters that a plan divides. A parameter with two names is listed once.
/// Throws: c10::ValueError if a pattern matches nothing (the message suggests the nearest name), or if two patterns match
///         the same parameter. It is also thrown if a size is not divisible by the number of ranks, or if a weight is
///         not 2-D
std::vector<TensorCut> find_cuts(const Model& model, const TensorPlan& plan, int ranks);

/// Returns a text such as "column, 3 parts, [in, out]".
std::string to_string(const TensorStyle& style);

/// Returns the first of `rank`'s elements if `size` elements are divided among the ranks as evenly as possible.
constexpr int64_t first_of_rank(int64_t size, int64_t rank, int64_t ranks) {
  return size * rank / ranks;
}

}  // namespace bellows::parallel
