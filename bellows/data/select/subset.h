#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::data {

/// A selection of samples of a dataset, by id: a small JSON file that any loader accepts (Dataset::subset, the recipe's
/// `subset`).
struct Subset {
  std::string source;        ///< data::fingerprint of the whole dataset; "": unknown, not checked
  std::string rule;          ///< description of how the samples were chosen
  int64_t of = 0;            ///< number of samples in the whole dataset
  std::vector<int64_t> ids;  ///< ascending, without duplicates
};

/// Throws: c10::ValueError if an id is out of range or occurs twice; c10::Error if the file cannot be written
void save_subset(const std::string& path, Subset subset);
/// Throws: c10::ValueError if the file is missing or corrupt, or if an id is out of range or occurs twice; the message
///         names the path, what was expected and what was found
Subset load_subset(const std::string& path);
/// Parses the content of a subset file.
/// Params: path – for messages
/// Throws: as load_subset
Subset parse_subset(std::string_view text, const std::string& path);

/// Draws `count` of 0 … samples - 1, ascending. All sets of that size are equally likely.
/// Throws: c10::ValueError if count is outside [0, samples]
std::vector<int64_t> random_subset(int64_t samples, int64_t count, uint64_t seed);

/// The ids of the `count` greatest `values`, ascending; `seed` decides between equal values.
/// Throws: c10::ValueError if count is outside [0, values.size()] or if a value is NaN
std::vector<int64_t> greatest(const std::vector<double>& values, int64_t count, uint64_t seed);

/// Like greatest(), but within each class: `count` is divided so that classes keep their proportions to within one
/// sample.
/// Params: labels – one per sample (labels.h)
/// Throws: c10::ValueError as greatest(), or if lengths differ
std::vector<int64_t> greatest_per_class(const std::vector<double>& values, const std::vector<int64_t>& labels,
                                        int64_t count, uint64_t seed);

}  // namespace bellows::data
