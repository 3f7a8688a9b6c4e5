#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace YAML {
class Node;
}

namespace bellows::train {

/// A map of keys and values in a YAML file, such as the description of a cluster or a list of prices. All messages start
/// with the name of the text.
/// Throws: all functions throw c10::ValueError if the file does not have the expected content
class YamlMap {
 public:
  /// Params: where – name of the text in messages, such as "cluster: FILE"
  YamlMap(const YAML::Node& map, std::string where);
  /// Throws: c10::ValueError also if the text is not valid YAML
  static YamlMap parse(std::string_view text, const std::string& where);

  /// Checks that the map has no other keys, and no key twice.
  void check_keys(const std::vector<std::string>& known) const;
  bool has(const std::string& key) const;
  /// Returns a number from `low` to `high`, or `otherwise` if the key is missing. If `otherwise` is NaN, the key is
  /// required.
  double number(const std::string& key, double low, double high, double otherwise) const;
  int64_t count(const std::string& key, double high, double otherwise) const;
  /// Returns a map of numbers from `low` to `high`; empty if the key is missing.
  std::map<std::string, double> numbers(const char* key, const std::vector<std::string>& known, double low,
                                        double high) const;
  /// Returns false if the key is missing.
  bool flag(const char* key) const;
  /// Returns "" if the key is missing.
  std::string text(const char* key) const;
  YamlMap part(const char* key) const;
  /// Returns the maps of a list.
  std::vector<YamlMap> list(const char* key) const;
  const std::string& where() const { return where_; }

 private:
  std::shared_ptr<const YAML::Node> map_;
  std::string where_;
};

}  // namespace bellows::train
