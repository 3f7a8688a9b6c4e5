#include "bellows/comm/mesh.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/comm/collectives.h"
#include "bellows/core/error.h"

namespace bellows::comm {

namespace {

std::string text_of(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const MeshAxis& axis : axes) text += (text.empty() ? "" : " × ") + axis.name + " " + std::to_string(axis.size);
  return text.empty() ? "no axes" : text;
}

void check_axes(const Group& all, const std::vector<MeshAxis>& axes) {
  int64_t product = 1;
  for (const MeshAxis& axis : axes) {
    TORCH_CHECK_VALUE(!axis.name.empty() && axis.size > 0,
                      "Mesh: expected axes with a name and a size above 0, got the axis \"", axis.name, "\" of size ",
                      axis.size, ".");
    TORCH_CHECK_VALUE(
        std::count_if(axes.begin(), axes.end(), [&](const MeshAxis& a) { return a.name == axis.name; }) == 1,
        "Mesh: axis \"", axis.name, "\" is listed twice.");
    product *= axis.size;
    TORCH_CHECK_VALUE(product <= all.size(), "Mesh: ", text_of(axes), " needs more than ", all.size(),
                      " ranks. Change an axis, or the number of ranks.");
  }
  TORCH_CHECK_VALUE(product == all.size(), "Mesh: ", text_of(axes), " is for ", product, " ranks, but there are ",
                    all.size(), ". Change an axis, or the number of ranks.");
}

/// Otherwise, the ranks would wait for different groups. Collective.
void check_same_axes(const Group& all, const std::vector<MeshAxis>& axes) {
  const std::vector<std::string> texts = all_gather_strings(text_of(axes), all);
  const auto other = std::find_if(texts.begin(), texts.end(), [&](const auto& text) { return text != texts.front(); });
  TORCH_CHECK_VALUE(other == texts.end(), "Mesh: rank ", other - texts.begin(), " has ", *other, ", and rank 0 has ",
                    texts.front(), ". Pass the same axes on all ranks.");
}

}  // namespace

Mesh::Mesh(const Group& all, std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  check_same_axes(all, axes_);
  check_axes(all, axes_);
  coordinates_.resize(axes_.size());
  groups_.reserve(axes_.size());
  std::vector<int> strides(axes_.size(), 1);
  for (size_t i = axes_.size(); i-- > 0;) {
    if (i + 1 < axes_.size()) strides[i] = strides[i + 1] * axes_[i + 1].size;
    coordinates_[i] = all.rank() / strides[i] % axes_[i].size;
  }
  for (size_t i = 0; i < axes_.size(); ++i) {
    std::vector<int> ranks(static_cast<size_t>(axes_[i].size));
    for (int at = 0; at < axes_[i].size; ++at)
      ranks[static_cast<size_t>(at)] =
          all.ranks()[static_cast<size_t>(all.rank() + (at - coordinates_[i]) * strides[i])];
    groups_.push_back(subgroup(all, ranks, axes_[i].name));
  }
}

size_t Mesh::index(const std::string& axis) const {
  std::vector<std::string> names;
  names.reserve(axes_.size());
  for (const MeshAxis& there : axes_) names.push_back(there.name);
  const auto found = std::find(names.begin(), names.end(), axis);
  TORCH_CHECK_VALUE(found != names.end(), "Mesh: no axis is called \"", axis, "\" in ", to_string(), ".",
                    did_you_mean(axis, names));
  return static_cast<size_t>(found - names.begin());
}

int Mesh::size(const std::string& axis) const {
  return axes_[index(axis)].size;
}

int Mesh::coordinate(const std::string& axis) const {
  return coordinates_[index(axis)];
}

const Group& Mesh::group(const std::string& axis) const {
  return groups_[index(axis)];
}

std::string Mesh::to_string() const {
  return text_of(axes_);
}

}  // namespace bellows::comm
