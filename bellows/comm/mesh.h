#pragma once

#include <string>
#include <vector>

#include "bellows/comm/group.h"

namespace bellows::comm {

struct MeshAxis {
  std::string name;
  int size = 1;
};

/// Arranges the ranks along named axes. The last axis varies fastest. In {{"data", 2}, {"tensor", 2}}, rank 1 has the
/// coordinates data 0 and tensor 1. For each axis, there is a group of the ranks that have the same coordinates as this
/// rank on all other axes.
class Mesh {
 public:
  /// Creates the groups. Collective.
  /// Params: ranks – the ranks to arrange, such as a World
  /// Throws: c10::ValueError if the ranks pass different axes; the message names a rank and its axes. It is also thrown
  ///         if the product of the sizes is not the number of ranks, or if an axis name is empty or used twice
  Mesh(const Group& ranks, std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  /// size(), coordinate() and group() throw c10::ValueError if the axis does not exist.
  int size(const std::string& axis) const;
  int coordinate(const std::string& axis) const;  ///< coordinate of this rank
  const Group& group(const std::string& axis) const;

  std::string to_string() const;  ///< for example "data 2 × tensor 2"

 private:
  size_t index(const std::string& axis) const;

  std::vector<MeshAxis> axes_;
  std::vector<int> coordinates_;
  std::vector<Group> groups_;
};

}  // namespace bellows::comm
