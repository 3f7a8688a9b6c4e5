#include "bellows/parallel/ddp/same_model.h"

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/core/version.h"
#include "bellows/parallel/ddp/reducer.h"

namespace bellows::parallel {

namespace {

/// One line per tensor.
void append_lines(std::vector<std::string>& lines, const char* kind, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    lines.push_back(c10::str(kind, " ", name, " ", tensor.scalar_type(), "[", c10::Join(", ", tensor.sizes()), "]",
                             tensor.requires_grad() ? ", trained" : ", not trained"));
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Returns "" if both are equal.
std::string difference(const std::string& item, const std::vector<std::string>& first,
                       const std::vector<std::string>& own, int rank) {
  const auto [there, here] = std::mismatch(first.begin(), first.end(), own.begin(), own.end());
  if (there == first.end() && here == own.end()) return "";
  const auto text = [](auto at, auto end) { return at == end ? std::string("the end of the list") : *at; };
  return c10::str(item, " ", there - first.begin() + 1, " is ", text(here, own.end()), " on rank ", rank, ", and ",
                  text(there, first.end()), " on rank 0");
}

}  // namespace

std::string describe_differing_lines(const std::string& what, const std::string& item,
                                     const std::vector<std::string>& own, const comm::Group& group,
                                     const std::string& advice) {
  if (group.size() == 1) return "";
  const std::vector<std::string> first = lines_of(comm::broadcast_string(c10::Join("\n", own), 0, group));
  const auto differences = comm::all_gather_strings(difference(item, first, own, group.rank()), group);
  const auto found =
      std::find_if(differences.begin(), differences.end(), [](const auto& text) { return !text.empty(); });
  return found == differences.end() ? "" : c10::str(what, " (group ", group.name(), "): ", *found, ". ", advice);
}

void check_same_lines(const std::string& what, const std::string& item, const std::vector<std::string>& own,
                      const comm::Group& group, const std::string& advice) {
  const std::string problem = describe_differing_lines(what, item, own, group, advice);
  TORCH_CHECK_VALUE(problem.empty(), problem);
}

std::string describe_differing_options(const std::string& user, std::vector<std::string> own,
                                       const comm::Group& group) {
  own.insert(own.begin(), {"Bellows " BELLOWS_VERSION, "libtorch " TORCH_VERSION});
  return describe_differing_lines("the ranks have different options or versions for " + user, "line", own, group,
                                  "Pass the same options on every rank, and run the same build.");
}

void check_same_options(const std::string& user, std::vector<std::string> own, const comm::Group& group) {
  const std::string problem = describe_differing_options(user, std::move(own), group);
  TORCH_CHECK_VALUE(problem.empty(), problem);
}

void check_same_model(const Model& model, const comm::Group& group) {
  std::vector<std::string> lines;
  append_lines(lines, "parameter", model.named_parameters());
  append_lines(lines, "buffer", model.named_buffers());
  check_same_lines("the ranks hold different models, \"" + model.name() + "\"", "tensor", lines, group);
}

void broadcast_buffers(const Model& model, const comm::Group& group) {
  broadcast_tensors(model.named_buffers(), 0, group);
}

}  // namespace bellows::parallel
