#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <iterator>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bellows/graph/replay/call_frame.h"

namespace bellows::compile_detail {

template <class Type>
struct is_tuple : std::false_type {};
template <class... Items>
struct is_tuple<std::tuple<Items...>> : std::true_type {};
template <class First, class Second>
struct is_tuple<std::pair<First, Second>> : std::true_type {};
template <class Item, size_t size>
struct is_tuple<std::array<Item, size>> : std::true_type {};

template <class Type>
concept TensorLike = std::is_base_of_v<at::Tensor, Type>;
template <class Type>
concept ListOfTensors = std::ranges::forward_range<const Type> && requires(const Type& list) {
  { *std::ranges::begin(list) } -> std::same_as<const at::Tensor&>;
};
template <class Type>
concept PlainNumber = std::is_arithmetic_v<Type> || std::is_enum_v<Type>;

template <class Number>
void add_bytes(const Number& number, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// Adds the value of an argument that is not a tensor, and the length of a list, to the frame of a call.
template <class Argument>
void add_value(const Argument& argument, graph::CallFrame& frame) {
  if constexpr (TensorLike<Argument> || std::is_empty_v<Argument>) {
    return;
  } else if constexpr (PlainNumber<Argument>) {
    add_bytes(argument, frame.values);
  } else if constexpr (std::is_convertible_v<const Argument&, std::string_view>) {
    const std::string_view text = argument;
    add_bytes(text.size(), frame.values);
    frame.values += text;
  } else if constexpr (ListOfTensors<Argument>) {
    add_bytes(std::ranges::distance(argument), frame.values);
  } else if constexpr (is_tuple<Argument>::value) {
    // The region does not receive tensors in tuples, so a tuple may contain only numbers and texts.
    const auto add = [&](const auto& item) {
      using Item = std::decay_t<decltype(item)>;
      if constexpr (PlainNumber<Item> || std::is_convertible_v<const Item&, std::string_view>)
        add_value(item, frame);
      else
        frame.unsupported = "an argument has a type that cannot be compared between calls";
    };
    std::apply([&](const auto&... items) { (add(items), ...); }, argument);
  } else if constexpr (std::ranges::forward_range<const Argument>) {
    if constexpr (PlainNumber<std::ranges::range_value_t<const Argument>>) {
      add_bytes(std::ranges::distance(argument), frame.values);
      for (const auto number : argument) add_bytes(number, frame.values);
    } else {
      frame.unsupported = "an argument has a type that cannot be compared between calls";
    }
  } else {
    frame.unsupported = "an argument has a type that cannot be compared between calls";
  }
}

/// Whether a result consists of tensors: a tensor, a vector of tensors, or tuples, pairs and arrays of these.
template <class Result>
struct consists_of_tensors : std::false_type {};
template <>
struct consists_of_tensors<at::Tensor> : std::true_type {};
template <>
struct consists_of_tensors<std::vector<at::Tensor>> : std::true_type {};
template <class... Items>
struct consists_of_tensors<std::tuple<Items...>> : std::conjunction<consists_of_tensors<Items>...> {};
template <class First, class Second>
struct consists_of_tensors<std::pair<First, Second>> : consists_of_tensors<std::tuple<First, Second>> {};
template <class Item, size_t size>
struct consists_of_tensors<std::array<Item, size>> : consists_of_tensors<Item> {};

/// Adds the tensors of a result to the frame of a call.
template <class Result>
void add_result(const Result& result, graph::CallFrame& frame) {
  if constexpr (std::is_same_v<Result, at::Tensor>) {
    frame.returned.push_back(result);
  } else if constexpr (std::is_same_v<Result, std::vector<at::Tensor>>) {
    frame.lengths.push_back(result.size());
    frame.returned.insert(frame.returned.end(), result.begin(), result.end());
  } else {
    std::apply([&](const auto&... items) { (add_result(items, frame), ...); }, result);
  }
}

/// Creates a result from the tensors of a replayed call, in the order of add_result().
template <class Result>
class ResultReader {
 public:
  static Result read(graph::CallFrame& frame) {
    size_t tensor = 0, length = 0;
    return part<Result>(frame, tensor, length);
  }

 private:
  template <class Part>
  static Part part(graph::CallFrame& frame, size_t& tensor, size_t& length) {
    if constexpr (std::is_same_v<Part, at::Tensor>) {
      return std::move(frame.returned[tensor++]);
    } else if constexpr (std::is_same_v<Part, std::vector<at::Tensor>>) {
      const auto first = frame.returned.begin() + static_cast<std::ptrdiff_t>(tensor);
      const size_t count = frame.lengths[length++];
      tensor += count;
      return Part(std::make_move_iterator(first), std::make_move_iterator(first + static_cast<std::ptrdiff_t>(count)));
    } else {
      const auto parts = [&]<size_t... at>(std::index_sequence<at...>) {
        // Braces: the parts are read in order.
        return Part{part<std::tuple_element_t<at, Part>>(frame, tensor, length)...};
      };
      return parts(std::make_index_sequence<std::tuple_size_v<Part>>());
    }
  }
};

}  // namespace bellows::compile_detail
