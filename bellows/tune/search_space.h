#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows {
class RandomStream;
}

namespace bellows::tune {

/// The values that one key of a recipe can have in a search. A value is a double: the number itself, or the index of a
/// choice.
struct Parameter {
  enum class Kind { real, integer, choice };

  std::string name;  ///< recipe key, or "model.KEY" for a key of the model's config.json
  Kind kind = Kind::real;
  double low = 0, high = 0;  ///< both inclusive; for choices 0 and the last index
  bool log = false;          ///< values are distributed uniformly on a logarithmic scale
  double step = 0;           ///< distance of neighbouring values, counted from `low`; 0: any value. 1 for integers
  int64_t points = 5;        ///< number of values in a grid, for real numbers without a step
  std::vector<std::string> choices{};

  bool operator==(const Parameter&) const = default;

  /// Returns the number of values, or 0 if every number in the range is allowed.
  int64_t count() const;
  /// Returns the ends of the interval that a continuous distribution of this parameter covers, on the logarithmic scale
  /// if `log` is set. For parameters with steps, each value has half a step on both sides.
  double inner_low() const;
  double inner_high() const;
  /// Converts a number from that interval to the nearest value. Numbers without a step are rounded to six digits.
  double from_inner(double number) const;
  /// Draws a value uniformly.
  double draw(RandomStream& random) const;
  /// Returns the values of a grid, in ascending order.
  std::vector<double> grid() const;
  /// Returns the value as text, as a recipe contains it.
  std::string text(double value) const;
};

/// One value per parameter, in the order of the search space.
using Assignment = std::vector<double>;

/// The parameters of a search.
struct SearchSpace {
  std::vector<Parameter> parameters;

  bool operator==(const SearchSpace&) const = default;

  /// Checks that there are parameters, that their names are unique, and that each range is usable.
  /// Throws: c10::ValueError if a check fails (the message has the parameter's name)
  void check() const;
  /// Returns the number of configurations, at most 1e15, or 0 if a parameter has no number of values.
  int64_t count() const;
  Assignment draw(RandomStream& random) const;
  /// Returns the configuration with this index, from 0 to the product of the sizes of the parameters' grids - 1. The
  /// last parameter changes fastest.
  Assignment grid_point(int64_t index) const;
  int64_t grid_count() const;  ///< at most 1e15
  /// Returns "lr=0.1 batch_size=32".
  std::string text(const Assignment& values) const;
};

}  // namespace bellows::tune
