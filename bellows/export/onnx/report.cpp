#include <sstream>

#include "bellows/export/onnx.h"

namespace bellows {

namespace {

std::string shape_text(const std::vector<std::string>& shape) {
  std::string text;
  for (const std::string& axis : shape) text += (text.empty() ? "" : ", ") + axis;
  return "[" + text + "]";
}

void add_tensors(std::ostringstream& out, const char* title, const std::vector<OnnxReport::Tensor>& tensors) {
  for (const OnnxReport::Tensor& one : tensors)
    out << title << one.name << "  " << one.dtype << " " << shape_text(one.shape) << "\n";
}

std::string megabytes(uint64_t bytes) {
  std::ostringstream out;
  out.precision(3);
  constexpr double unit = 1e6;
  if (bytes < 1'000'000)
    out << static_cast<double>(bytes) / 1e3 << " kB";
  else
    out << static_cast<double>(bytes) / unit << " MB";
  return out.str();
}

}  // namespace

std::string OnnxReport::to_text() const {
  std::ostringstream out;
  out << "Wrote " << file << " (" << megabytes(bytes) << ", opset " << opset << ")";
  if (!data_file.empty()) out << " and " << data_file << " (" << megabytes(data_bytes) << ")";
  out << "\n";
  add_tensors(out, "  input   ", inputs);
  add_tensors(out, "  output  ", outputs);
  for (const auto& [name, sizes] : dynamic_axes) {
    out << "  dynamic axis " << name << ": recorded with";
    for (const int64_t size : sizes) out << " " << size;
    out << "\n";
  }
  for (const FixedAxis& axis : fixed_axes)
    out << "  fixed: axis " << axis.axis << " of " << axis.input << " has " << axis.size << " elements\n";
  int64_t nodes = 0;
  for (const auto& [name, count] : operators) nodes += count;
  out << "  " << nodes << " nodes:";
  const char* separator = " ";
  for (const auto& [name, count] : operators) {
    out << separator << count << " " << name;
    separator = ", ";
  }
  out << "\n";
  return out.str();
}

}  // namespace bellows
