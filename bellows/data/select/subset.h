#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::data {

/// Some samples of a data set, by id: a small JSON file that any loader takes (Dataset::subset, the recipe's `subset`).
struct Subset {
  std::string source;        ///< data::fingerprint of the whole data set; "": unknown, not checked
  std::string rule;          ///< in words, how they were chosen
  int64_t of = 0;            ///< samples in the whole data set
  std::vector<int64_t> ids;  ///< ascending, each once
};

/// Throws: c10::ValueError – ids out of range or twice; c10::Error – the file cannot be written
void save_subset(const std::string& path, Subset subset);
/// Throws: c10::ValueError – missing, corrupt, ids out of range or twice: path, what was expected and found
Subset load_subset(const std::string& path);
/// What such a file says.
/// Params: path – for messages
/// Throws: as load_subset
Subset parse_subset(std::string_view text, const std::string& path);

/// `count` of 0 … samples - 1, ascending, each set of that size equally likely.
/// Throws: c10::ValueError – count outside [0, samples]
std::vector<int64_t> random_subset(int64_t samples, int64_t count, uint64_t seed);

/// The `count` ids of greatest `values`, ascending; equal values are drawn by `seed`.
/// Throws: c10::ValueError – count outside [0, values.size()], a value that is not a number
std::vector<int64_t> greatest(const std::vector<double>& values, int64_t count, uint64_t seed);

/// The same within each class: `count` is shared out so that classes keep their proportions, to within one sample.
/// Params: labels – one a sample (labels.h)
/// Throws: c10::ValueError – as greatest; lengths differ
std::vector<int64_t> greatest_per_class(const std::vector<double>& values, const std::vector<int64_t>& labels,
                                        int64_t count, uint64_t seed);

}  // namespace bellows::data
