#include "bellows/data/images/augment_list.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

namespace {

/// The value of a parameter: one number, or the numbers in parentheses.
struct AugmentValue {
  std::vector<double> numbers;
  bool is_tuple = false;

  std::string text() const { return c10::str(is_tuple ? "(" : "", c10::Join(", ", numbers), is_tuple ? ")" : ""); }
};

using AugmentArguments = std::map<std::string, AugmentValue, std::less<>>;

/// Reads `NAME`, `NAME(value, key=value)`, `(1, 2)` and numbers.
class AugmentParser {
 public:
  explicit AugmentParser(const std::string& text) : text_(text) {}

  bool at_end() {
    skip_spaces();
    return position_ == text_.size();
  }
  /// Skips the character if it is next.
  bool take(char expected) {
    if (at_end() || text_[position_] != expected) return false;
    ++position_;
    return true;
  }
  void expect(char expected) {
    if (!take(expected)) fail(c10::str("\"", expected, "\""));
  }
  std::string name() {
    skip_spaces();
    const size_t begin = position_;
    while (position_ < text_.size() && is_name(text_[position_])) ++position_;
    if (begin == position_) fail("a name");
    return text_.substr(begin, position_ - begin);
  }
  /// Returns the name of a parameter and skips the "=" after it. Returns "" if a value without a name is next.
  std::string keyword() {
    const size_t before = position_;
    skip_spaces();
    if (position_ < text_.size() && is_name(text_[position_]) && !std::isdigit(as_byte(text_[position_])) &&
        text_[position_] != '.') {
      std::string key = name();
      expect('=');
      return key;
    }
    position_ = before;
    return "";
  }
  AugmentValue value() {
    const bool tuple = take('('), list = !tuple && take('[');
    if (!tuple && !list) return {{number()}, false};
    AugmentValue result{{}, true};
    do {
      result.numbers.push_back(number());
    } while (take(','));
    expect(tuple ? ')' : ']');
    return result;
  }
  [[noreturn]] void fail(const std::string& expected) const {
    const std::string rest = text_.substr(std::min(position_, text_.size()));
    C10_THROW_ERROR(ValueError, c10::str("expected ", expected, " at character ", position_ + 1, ", found ",
                                         rest.empty() ? "the end" : io::printable(rest, 30), "."));
  }

 private:
  static unsigned char as_byte(char c) { return static_cast<unsigned char>(c); }
  static bool is_name(char c) { return std::isalnum(as_byte(c)) || c == '_' || c == '.'; }
  void skip_spaces() {
    while (position_ < text_.size() && std::isspace(as_byte(text_[position_]))) ++position_;
  }
  double number() {
    skip_spaces();
    const size_t begin = position_;
    while (position_ < text_.size() &&
           (is_name(text_[position_]) || text_[position_] == '-' || text_[position_] == '+'))
      ++position_;
    std::string_view digits = std::string_view(text_).substr(begin, position_ - begin);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc() && end == digits.data() + digits.size() && std::isfinite(value)) return value;
    position_ = begin;
    fail("a number");
  }

  const std::string& text_;
  size_t position_ = 0;
};

double augment_number(const AugmentArguments& given, const char* key, double otherwise) {
  const auto found = given.find(key);
  if (found == given.end()) return otherwise;
  TORCH_CHECK_VALUE(!found->second.is_tuple, key, ": expected one number, got ", found->second.text(), ".");
  return found->second.numbers.front();
}

int64_t augment_integer(const AugmentArguments& given, const char* key, int64_t otherwise) {
  const double value = augment_number(given, key, static_cast<double>(otherwise));
  TORCH_CHECK_VALUE(value == std::floor(value) && std::abs(value) <= 1e9, key, ": expected a whole number, got ", value,
                    ".");
  return static_cast<int64_t>(value);
}

std::pair<double, double> augment_pair(const AugmentArguments& given, const char* key,
                                       std::pair<double, double> otherwise) {
  const auto found = given.find(key);
  if (found == given.end()) return otherwise;
  TORCH_CHECK_VALUE(found->second.is_tuple && found->second.numbers.size() == 2, key,
                    ": expected two numbers, such as (0.5, 1), got ", found->second.text(), ".");
  return {found->second.numbers[0], found->second.numbers[1]};
}

/// The sizes in `size`; a single number counts for both.
struct AugmentSize {
  int64_t height = 0, width = 0;
  bool single = false;
};

AugmentSize augment_size(const AugmentArguments& given) {
  const auto found = given.find("size");
  TORCH_CHECK_VALUE(found != given.end(), "the parameter size is missing, such as size=224 or size=(224, 320).");
  const std::vector<double>& numbers = found->second.numbers;
  TORCH_CHECK_VALUE(numbers.size() <= 2, "size: expected one or two numbers, got ", found->second.text(), ".");
  for (const double number : numbers) {
    TORCH_CHECK_VALUE(number == std::floor(number) && number >= 1 && number <= kMaxImageSide,
                      "size: expected whole numbers from 1 to ", kMaxImageSide, ", got ", found->second.text(), ".");
  }
  return {static_cast<int64_t>(numbers.front()), static_cast<int64_t>(numbers.back()), numbers.size() == 1};
}

/// The range of a factor of ColorJitter: a strength x stands for [max(0, 1 - x), 1 + x].
std::pair<double, double> factors_of(const AugmentArguments& given, const char* key) {
  const auto found = given.find(key);
  if (found == given.end()) return {1, 1};
  if (found->second.is_tuple) return augment_pair(given, key, {});
  const double strength = augment_number(given, key, 0);
  TORCH_CHECK_VALUE(strength >= 0 && strength <= 1e6, key, ": expected a number from 0 to 1e6, got ", strength, ".");
  return {std::max(0.0, 1.0 - strength), 1.0 + strength};
}

Transform jitter_from(const AugmentArguments& given) {
  ColorJitterRanges ranges{factors_of(given, "brightness"), factors_of(given, "contrast"),
                           factors_of(given, "saturation")};
  const auto hue = given.find("hue");
  if (hue != given.end() && hue->second.is_tuple) {
    ranges.hue = augment_pair(given, "hue", {});
  } else {
    const double most = augment_number(given, "hue", 0);
    TORCH_CHECK_VALUE(most >= 0 && most <= 0.5, "hue: expected a number from 0 to 0.5, got ", most, ".");
    ranges.hue = {-most, most};
  }
  return color_jitter_between(ranges);
}

Transform erasing_from(const AugmentArguments& given, const AugmentContext& context) {
  TORCH_CHECK_VALUE(augment_number(given, "value", 0) == 0, "value: expected 0, the only supported value, got ",
                    augment_number(given, "value", 0), ".");
  std::vector<uint8_t> fill = {0};
  if (!context.mean.empty()) {
    fill.clear();
    fill.reserve(context.mean.size());
    for (const double mean : context.mean)
      fill.push_back(static_cast<uint8_t>(std::clamp(std::nearbyint(255 * mean), 0.0, 255.0)));
  }
  return random_erasing(augment_number(given, "p", 0.5), augment_pair(given, "scale", {0.02, 0.33}),
                        augment_pair(given, "ratio", {0.3, 3.3}), std::move(fill));
}

Transform resized_crop_from(const AugmentArguments& given, const AugmentContext& context) {
  AugmentSize size{context.height, context.width};
  if (given.contains("size")) size = augment_size(given);
  TORCH_CHECK_VALUE(size.height > 0, "the size is unknown. Set image_size, or the parameter size, such as size=224.");
  return random_resized_crop(size.height, size.width, augment_pair(given, "scale", {0.08, 1.0}),
                             augment_pair(given, "ratio", {3.0 / 4.0, 4.0 / 3.0}));
}

Transform crop_from(const AugmentArguments& given) {
  const AugmentSize size = augment_size(given);
  const int64_t fill = augment_integer(given, "fill", 0);
  TORCH_CHECK_VALUE(fill >= 0 && fill <= 255, "fill: expected a number from 0 to 255, got ", fill, ".");
  return random_crop(size.height, size.width, augment_integer(given, "padding", 0), static_cast<uint8_t>(fill));
}

Transform rand_augment_from(const AugmentArguments& given) {
  TORCH_CHECK_VALUE(augment_integer(given, "num_magnitude_bins", 31) == 31,
                    "num_magnitude_bins: expected 31, the only supported number, got ",
                    augment_integer(given, "num_magnitude_bins", 31), ".");
  constexpr int64_t most = std::numeric_limits<int>::max();
  return rand_augment(static_cast<int>(std::clamp<int64_t>(augment_integer(given, "num_ops", 2), -1, most)),
                      static_cast<int>(std::clamp<int64_t>(augment_integer(given, "magnitude", 9), -1, most)));
}

/// A row of the table of steps.
struct AugmentKind {
  std::string name;
  std::vector<std::string> parameters;  ///< in torchvision's order
  bool sets_size = false;
  /// Creates the transform; empty for steps on batches.
  std::function<Transform(const AugmentArguments& given, const AugmentContext& context)> make;
};

/// Steps that only move pixels.
std::vector<AugmentKind> placing_kinds() {
  using Given = AugmentArguments;
  using Context = AugmentContext;
  return {{"Resize",
           {"size"},
           true,
           [](const Given& given, const Context&) {
             const AugmentSize size = augment_size(given);
             return size.single ? resize_shorter(size.height) : resize(size.height, size.width);
           }},
          {"CenterCrop",
           {"size"},
           true,
           [](const Given& given, const Context&) {
             const AugmentSize size = augment_size(given);
             return center_crop(size.height, size.width);
           }},
          {"RandomCrop",
           {"size", "padding", "fill"},
           true,
           [](const Given& given, const Context&) { return crop_from(given); }},
          {"RandomResizedCrop", {"size", "scale", "ratio"}, true, resized_crop_from},
          {"RandomHorizontalFlip",
           {"p"},
           false,
           [](const Given& given, const Context&) { return random_flip(augment_number(given, "p", 0.5)); }},
          {"RandomVerticalFlip", {"p"}, false, [](const Given& given, const Context&) {
             return random_vertical_flip(augment_number(given, "p", 0.5));
           }}};
}

/// Steps that change pixels, and steps on batches.
std::vector<AugmentKind> changing_kinds() {
  using Given = AugmentArguments;
  using Context = AugmentContext;
  return {{"ColorJitter",
           {"brightness", "contrast", "saturation", "hue"},
           false,
           [](const Given& given, const Context&) { return jitter_from(given); }},
          {"RandomGrayscale",
           {"p"},
           false,
           [](const Given& given, const Context&) { return random_grayscale(augment_number(given, "p", 0.1)); }},
          {"RandAugment",
           {"num_ops", "magnitude", "num_magnitude_bins"},
           false,
           [](const Given& given, const Context&) { return rand_augment_from(given); }},
          {"RandomErasing", {"p", "scale", "ratio", "value"}, false, erasing_from},
          {"MixUp", {"alpha"}, false, nullptr},
          {"CutMix", {"alpha"}, false, nullptr}};
}

const std::vector<AugmentKind>& augment_kinds() {
  static const std::vector<AugmentKind> kinds = [] {
    std::vector<AugmentKind> all = placing_kinds();
    std::ranges::move(changing_kinds(), std::back_inserter(all));
    return all;
  }();
  return kinds;
}

const AugmentKind& find_augment_kind(std::string name) {
  for (const std::string_view module : {"torchvision.", "transforms.", "v2."}) {
    if (name.starts_with(module)) name.erase(0, module.size());
  }
  std::vector<std::string> names;
  names.reserve(augment_kinds().size());
  for (const AugmentKind& kind : augment_kinds()) {
    if (kind.name == name) return kind;
    names.push_back(kind.name);
  }
  const auto lower = [](std::string text) {
    std::erase(text, '_');
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
  };
  const auto near = std::ranges::find_if(names, [&](const std::string& known) { return lower(known) == lower(name); });
  const std::string hint = near != names.end() ? " Did you mean \"" + *near + "\"?" : did_you_mean(name, names);
  C10_THROW_ERROR(ValueError, c10::str("unknown step \"", name, "\". Expected none, crop, crop_flip, or a list of: ",
                                       c10::Join(", ", names), ".", hint));
}

AugmentArguments parse_arguments(AugmentParser& parser, const AugmentKind& kind) {
  AugmentArguments given;
  if (!parser.take('(')) return given;
  bool named = false;
  for (size_t place = 0; !parser.take(')'); ++place) {
    if (place > 0) {
      parser.expect(',');
      if (parser.take(')')) break;
    }
    std::string key = parser.keyword();
    named = named || !key.empty();
    if (key.empty()) {
      TORCH_CHECK_VALUE(
          !named && place < kind.parameters.size(), kind.name, ": expected at most ", kind.parameters.size(),
          " values without a name, before those with a name. Parameters: ", c10::Join(", ", kind.parameters), ".");
      key = kind.parameters[place];
    }
    TORCH_CHECK_VALUE(std::ranges::count(kind.parameters, key) > 0, kind.name, ": unknown parameter \"", key,
                      "\". Parameters: ", c10::Join(", ", kind.parameters), ".", did_you_mean(key, kind.parameters));
    TORCH_CHECK_VALUE(given.emplace(key, parser.value()).second, kind.name, ": the parameter \"", key,
                      "\" is given twice.");
  }
  return given;
}

/// The function that creates the transform of a step. Its errors name the step.
std::function<Transform(const AugmentContext&)> maker_of(const AugmentKind& kind, const AugmentArguments& given) {
  return [name = kind.name, make = kind.make, given](const AugmentContext& context) {
    try {
      return make(given, context);
    } catch (const c10::ValueError& error) {
      C10_THROW_ERROR(ValueError, name + ": " + user_message(error));
    }
  };
}

}  // namespace

AugmentList::AugmentList(const std::string& text) {
  AugmentParser parser(text);
  do {
    const AugmentKind& kind = find_augment_kind(parser.name());
    const AugmentArguments given = parse_arguments(parser, kind);
    if (kind.make) {
      TORCH_CHECK_VALUE(!mixes(), kind.name, " works on single images, so it must come before MixUp and CutMix.");
      steps_.push_back({maker_of(kind, given), kind.sets_size});
      steps_.back().make({.height = 1, .width = 1});  // checks the values
      continue;
    }
    const double alpha = augment_number(given, "alpha", 1);
    TORCH_CHECK_VALUE(alpha > 0 && alpha <= 1e6, kind.name, ": expected an alpha above 0 and at most 1e6, got ", alpha,
                      ".");
    double& own = kind.name == "MixUp" ? mix_.mixup_alpha : mix_.cutmix_alpha;
    TORCH_CHECK_VALUE(own == 0, kind.name, " is listed twice. Remove one.");
    own = alpha;
  } while (parser.take(','));
  if (!parser.at_end()) parser.fail("\",\" or the end of the list");
}

bool AugmentList::sets_size() const {
  return std::ranges::any_of(steps_, [](const Step& step) { return step.sets_size; });
}

bool AugmentList::mixes() const {
  return mix_.mixup_alpha > 0 || mix_.cutmix_alpha > 0;
}

Dataset AugmentList::apply(const Dataset& dataset, const AugmentContext& context) const {
  Dataset result = dataset;
  for (const Step& step : steps_) result = result.transform(step.make(context));
  if (!mixes()) return result;
  MixOptions options = mix_;
  options.num_classes = context.num_classes;
  return result.mix(options);
}

}  // namespace bellows::data
