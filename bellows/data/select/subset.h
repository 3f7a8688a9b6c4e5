#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::data {

/// A selection of samples of a dataset by id. It is stored as a small JSON file, which any loader accepts
/// (Dataset::subset, or `subset` in a recipe).
struct Subset {
  std::string source;        ///< fingerprint() of the complete dataset; "": unknown and not checked
  std::string rule;          ///< description of how the samples were chosen
  int64_t of = 0;            ///< number of samples in the complete dataset
  std::vector<int64_t> ids;  ///< ids in ascending order, without duplicates
};

/// Throws: c10::ValueError if an id is out of range or occurs twice, or if `source` or `rule` is not UTF-8; c10::Error
///         if the file cannot be written
void save_subset(const std::string& path, Subset subset);
/// Throws: c10::ValueError if the file is missing or corrupt, or if an id is out of range or occurs twice; the message
///         names the path, the expected content and the actual content
Subset load_subset(const std::string& path);
/// Parses the content of a subset file.
/// Params: path – path of the file, for error messages
/// Throws: see load_subset()
Subset parse_subset(std::string_view text, const std::string& path);

/// Draws `count` of the numbers 0 … samples - 1 and returns them in ascending order. All sets of this size are equally
/// likely.
/// Throws: c10::ValueError if count is outside [0, samples]
std::vector<int64_t> random_subset(int64_t samples, int64_t count, uint64_t seed);

/// Returns the ids of the `count` greatest `values` in ascending order. If values are equal, `seed` determines the
/// choice.
/// Throws: c10::ValueError if count is outside [0, values.size()] or if a value is NaN
std::vector<int64_t> greatest(const std::vector<double>& values, int64_t count, uint64_t seed);

/// Like greatest(), but chooses within each class. The number of chosen samples of a class is proportional to the size
/// of the class, up to a rounding difference of at most one sample.
/// Params: labels – one label per sample (labels.h)
/// Throws: c10::ValueError if `values` and `labels` have different lengths; exceptions of greatest()
std::vector<int64_t> greatest_per_class(const std::vector<double>& values, const std::vector<int64_t>& labels,
                                        int64_t count, uint64_t seed);

}  // namespace bellows::data
