#include <sstream>

#include "bellows/export/onnx.h"
#include "bellows/export/program.h"
#include "bellows/export/pytorch.h"

namespace bellows {

namespace {

std::string shape_text(const std::vector<std::string>& shape) {
  std::string text;
  for (const std::string& axis : shape) text += (text.empty() ? "" : ", ") + axis;
  return "[" + text + "]";
}

void add_tensor(std::ostringstream& out, const char* title, const std::string& name, const std::string& dtype,
                const std::vector<std::string>& shape) {
  out << title << name << "  " << dtype << " " << shape_text(shape) << "\n";
}

void add_tensors(std::ostringstream& out, const std::vector<ProgramTensor>& inputs,
                 const std::vector<ProgramTensor>& outputs) {
  const auto add = [&](const char* title, const ProgramTensor& one) {
    add_tensor(out, title, one.name, c10::getDtypeNames(one.dtype).first, one.sizes);
  };
  for (const ProgramTensor& one : inputs) add("  input   ", one);
  for (const ProgramTensor& one : outputs) add("  output  ", one);
}

void add_axes(std::ostringstream& out, const std::map<std::string, std::vector<int64_t>>& axes) {
  for (const auto& [name, sizes] : axes) {
    out << "  dynamic axis " << name << ": recorded with";
    for (const int64_t size : sizes) out << " " << size;
    out << "\n";
  }
}

void add_operators(std::ostringstream& out, const std::map<std::string, int64_t>& operators, const char* title) {
  int64_t total = 0;
  for (const auto& [name, count] : operators) total += count;
  out << "  " << total << " " << title << ":";
  const char* separator = " ";
  for (const auto& [name, count] : operators) {
    out << separator << count << " " << name;
    separator = ", ";
  }
  out << "\n";
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
  for (const Tensor& one : inputs) add_tensor(out, "  input   ", one.name, one.dtype, one.shape);
  for (const Tensor& one : outputs) add_tensor(out, "  output  ", one.name, one.dtype, one.shape);
  add_axes(out, dynamic_axes);
  for (const FixedAxis& axis : fixed_axes)
    out << "  fixed: axis " << axis.axis << " of " << axis.input << " has " << axis.size << " elements\n";
  add_operators(out, operators, "nodes");
  if (checked_by.empty())
    out << "  not checked: no library that runs ONNX files was used\n";
  else
    out << "  checked in " << checked_by << " with " << checked_calls << " calls: largest difference "
        << largest_difference << "\n";
  return out.str();
}

std::string ProgramReport::to_text() const {
  std::ostringstream out;
  out << "Wrote " << file << " (" << megabytes(bytes) << ": " << megabytes(weight_bytes) << " weights, "
      << megabytes(packed_bytes) << " packed weights)\n";
  add_tensors(out, inputs, outputs);
  add_axes(out, dynamic_axes);
  out << "  " << operators << " operators, libraries with compiled kernels: " << kernels << "\n";
  return out.str();
}

std::string PytorchReport::to_text() const {
  std::ostringstream out;
  out << "Wrote " << file << " (" << format << ", " << megabytes(bytes) << ", " << parameters << " parameters, "
      << buffers << " buffers, " << constants << " constants)\n";
  add_tensors(out, inputs, outputs);
  add_axes(out, dynamic_axes);
  add_operators(out, operators, "operators");
  if (checked_calls == 0) return out.str();
  out.precision(2);
  out << "  checked: " << checked_calls << " calls of the file with different sizes, largest difference "
      << largest_difference << " of the output's largest value\n";
  return out.str();
}

}  // namespace bellows
