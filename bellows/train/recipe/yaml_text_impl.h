#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>

#include "bellows/io/tables/number_text.h"

namespace bellows::train {

/// True for text that YAML reads back as it stands.
inline bool plain_in_yaml(const std::string& text) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./";
  return !text.empty() && letters.find(text[0]) != std::string_view::npos && YAML::Load(text).IsScalar() &&
         text.find_first_not_of(std::string(letters) + "-{},") == std::string::npos;
}

inline constexpr const char* binary_tag = "tag:yaml.org,2002:binary";

/// File names may hold any bytes; YAML text is UTF-8.
inline std::string quoted_in_yaml(const std::string& text) {
  YAML::Emitter emitter;
  if (!io::is_utf8(text)) {
    emitter << YAML::Binary(reinterpret_cast<const unsigned char*>(text.data()), text.size());
    return emitter.c_str();
  }
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

/// The text of a scalar, "" of null.
inline std::string text_in_yaml(const YAML::Node& value) {
  if (value.IsNull()) return "";
  if (value.Tag() != binary_tag) return value.Scalar();
  const auto bytes = value.as<YAML::Binary>();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace bellows::train
