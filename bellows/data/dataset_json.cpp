#include "bellows/data/dataset_json.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/io/bytes.h"
#include "bellows/io/tables/json_impl.h"

namespace bellows::data {

namespace {

using Json = nlohmann::json;

/// Parser of dataset.json.
class Description {
 public:
  Description(std::string_view text, const std::string& path) : path_(path) {
    try {
      document_ = io::parse_shallow_json(text, "open: " + path_, 16, /*throws=*/true);
    } catch (const Json::parse_error& error) {
      const size_t at = error.byte > 0 ? std::min(error.byte - 1, text.size()) : 0;
      TORCH_CHECK_VALUE(false, "open: ", path_, ": invalid JSON at byte ", at,
                        at < text.size() ? ": " + io::printable(text.substr(at), 20) : ": the file ends there", ".");
    } catch (const Json::out_of_range&) {
      TORCH_CHECK_VALUE(false, "open: ", path_, ": expected numbers that fit into a double, found a larger one.");
    }
    TORCH_CHECK_VALUE(document_.is_object(), "open: ", path_, ": expected a JSON object that describes a dataset, ",
                      "found ", io::shown_json(document_), ".");
  }

  std::string text(const char* key) const {
    return get<std::string>(key, "a text", [](const Json& value) { return value.is_string(); });
  }
  std::vector<std::string> texts(const char* key) const {
    return list<std::string>(key, "a list of texts", [](const Json& value) { return value.is_string(); });
  }
  std::vector<int64_t> sizes(const char* key) const {
    return list<int64_t>(key, "a list of whole numbers", [](const Json& value) {
      return value.is_number_integer() && value >= 0 && value <= INT64_MAX;
    });
  }
  std::vector<double> numbers(const char* key) const {
    return list<double>(key, "a list of numbers", [](const Json& value) { return value.is_number(); });
  }
  std::map<std::string, std::string> texts_by_name(const char* key) const {
    return get<std::map<std::string, std::string>>(key, "an object of texts", [](const Json& value) {
      return value.is_object() && std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
    });
  }

 private:
  /// Returns T() if the key is missing.
  template <class T, class Fits>
  T get(const char* key, const char* expected, const Fits& fits) const {
    const auto found = document_.find(key);
    if (found == document_.end()) return {};
    TORCH_CHECK_VALUE(fits(*found), "open: ", path_, ": expected \"", key, "\" to be ", expected, ", found ",
                      io::shown_json(*found), ".");
    return found->get<T>();
  }
  template <class T, class Fits>
  std::vector<T> list(const char* key, const char* expected, const Fits& fits) const {
    return get<std::vector<T>>(key, expected, [&](const Json& value) {
      return value.is_array() && std::all_of(value.begin(), value.end(), fits);
    });
  }

  std::string path_;
  Json document_;
};

}  // namespace

std::map<std::string, std::string> parse_dataset_json(std::string_view text, const std::string& path,
                                                      DatasetInfo& info) {
  const Description description(text, path);
  info.name = description.text("name");
  info.classes = description.texts("classes");
  info.image_size = description.sizes("image_size");
  info.mean = description.numbers("mean");
  info.std = description.numbers("std");
  return description.texts_by_name("splits");
}

}  // namespace bellows::data
