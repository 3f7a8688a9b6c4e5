#include "bellows/data/classes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>
#include <variant>

#include "bellows/core/error.h"
#include "bellows/data/fingerprint.h"
#include "bellows/data/label.h"
#include "bellows/data/order/integers.h"
#include "bellows/data/source_wrapper.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

namespace {

/// A class's number, or its name.
using Label = std::variant<int64_t, std::string>;

/// The field that holds the sample's class.
const Field* label_field(const Sample& sample) {
  const Field* named = sample.find("label");
  return named ? named : find_label_text(sample);
}

Label label_in(const Field& field) {
  if (!field.is_array) return parse_label_or_name(field, "label");
  int64_t number = -1;
  if (integer_count(field) == 1) copy_integers(field, 0, 1, &number);
  return number;
}

bool is_name(const Label& label) {
  return std::holds_alternative<std::string>(label);
}

/// `: "cat", "dog", …`
std::string in_part(const std::vector<std::string>& classes) {
  constexpr size_t shown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(shown, classes.size()); ++i)
    text += (i == 0 ? ": " : ", ") + io::printable(classes[i]);
  return classes.size() > shown ? text + ", …" : text;
}

/// Params: most – samples to look at
template <class Action>
void for_each_label(const Source& source, int64_t most, Action action) {
  Sample sample;
  for (int64_t i = 0; i < std::min(most, source.size()); ++i) {
    try {
      source.read(i, sample);
      if (const Field* field = label_field(sample)) action(label_in(*field));
    } catch (const c10::ValueError&) {  // a bad sample: training reports it
    }
  }
}

class NumberedLabels final : public SourceWrapper, public Derived {
 public:
  using Source::read;

  NumberedLabels(SourcePtr source, std::vector<std::string> classes)
      : SourceWrapper(std::move(source)), classes_(std::move(classes)) {
    TORCH_CHECK_VALUE(inner(), "number_labels: expected a source, got null.");
    for (size_t i = 0; i < classes_.size(); ++i) numbers_.emplace(classes_[i], static_cast<int64_t>(i));
  }

  void read(int64_t index, Sample& sample) const override {
    inner()->read(index, sample);
    const Field* label = label_field(sample);
    TORCH_CHECK_VALUE(label, "label: ", sample.where(), " has no label.");
    auto number = std::make_shared<Number>();
    number->value = number_of(*label, sample);
    Field& field = sample.fields[static_cast<size_t>(label - sample.fields.data())];
    field = {.name = "label",
             .bytes = std::as_bytes(std::span(&number->value, 1)),
             .offset = field.offset,
             .is_array = true,
             .dtype = c10::ScalarType::Long};
    number->owner = std::move(sample.owner);
    sample.owner = std::move(number);
  }

  bool stored() const override { return inner()->stored(); }
  const SourcePtr& origin() const override { return inner(); }

 private:
  struct Number {
    int64_t value = 0;
    std::shared_ptr<const void> owner;  // of the sample's other fields
  };

  int64_t number_of(const Field& field, const Sample& sample) const {
    Label label;
    try {
      label = label_in(field);
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, "label: ", sample.where(&field), ": ", user_message(error));
    }
    const auto* const name = std::get_if<std::string>(&label);
    TORCH_CHECK_VALUE(name, "label: ", sample.where(&field),
                      ": expected a class name, like the labels of the other samples, found a number.");
    const auto found = numbers_.find(*name);
    TORCH_CHECK_VALUE(found != numbers_.end(), "label: ", sample.where(&field), ": no class is called ",
                      io::printable(*name), ".", did_you_mean(*name, classes_), " The dataset has ", classes_.size(),
                      " classes", in_part(classes_), ".");
    return found->second;
  }

  std::vector<std::string> classes_;
  std::map<std::string, int64_t, std::less<>> numbers_;
};

}  // namespace

bool has_named_labels(const Source& source) {
  int64_t names = 0, numbers = 0;
  for_each_label(source, 100, [&](const Label& label) { ++(is_name(label) ? names : numbers); });
  return names > numbers;
}

std::vector<std::string> class_names(const Source& source) {
  const bool named = has_named_labels(source);
  std::set<std::string> names;
  int64_t largest = -1;
  for_each_label(source, source.size(), [&](const Label& label) {
    if (named && is_name(label)) names.insert(std::get<std::string>(label));
    if (!named && !is_name(label)) largest = std::max(largest, std::get<int64_t>(label));
  });
  std::vector<std::string> result(names.begin(), names.end());
  constexpr int64_t most = 1'000'000;
  for (int64_t i = 0; !named && i <= std::min(largest, most); ++i) result.push_back(std::to_string(i));
  return result;
}

SourcePtr number_labels(SourcePtr source, std::vector<std::string> classes) {
  return std::make_shared<NumberedLabels>(std::move(source), std::move(classes));
}

}  // namespace bellows::data
