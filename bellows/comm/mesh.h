#pragma once

#include <string>
#include <vector>

#include "bellows/comm/world.h"

namespace bellows::comm {

struct MeshAxis {
  std::string name;
  int size = 1;
};

/// The ranks laid out along named axes, the last one running fastest: in {{"data", 2}, {"tensor", 2}} rank 1 stands at
/// data 0, tensor 1. Each axis has a group: the ranks that differ from this one along it alone.
class Mesh {
 public:
  /// Makes the groups. Collective.
  /// Throws: c10::ValueError – sizes whose product is not the world's, an axis without name or twice
  Mesh(const World& world, std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  /// All three throw c10::ValueError where there is no such axis.
  int size(const std::string& axis) const;
  int coordinate(const std::string& axis) const;  ///< of this rank
  const Group& group(const std::string& axis) const;

  std::string to_string() const;  ///< "data 2 × tensor 2"

 private:
  size_t index(const std::string& axis) const;

  std::vector<MeshAxis> axes_;
  std::vector<int> coordinates_;
  std::vector<Group> groups_;
};

}  // namespace bellows::comm
