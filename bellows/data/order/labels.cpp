#include "bellows/data/order/labels.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/data/label.h"
#include "bellows/data/order/integers.h"
#include "bellows/kernels/parallel.h"

namespace bellows::data {

namespace {

int64_t label_of(const Sample& sample, const std::string& key) {
  const Field* field = find_label(sample);
  TORCH_CHECK_VALUE(field, "read_labels: ", sample.where(),
                    " has no label: expected a field cls or json, or an integer array \"label\".");
  if (field->is_array) {
    int64_t label = 0;
    TORCH_CHECK_VALUE(field->sizes.size() <= 1 && integer_count(*field) == 1, "read_labels: ", sample.where(field),
                      ": expected one integer as a label, got an array of type ", c10::toString(field->dtype),
                      " and sizes ", field->sizes, ".");
    copy_integers(*field, 0, 1, &label);
    return label;
  }
  try {
    return parse_label(*field, key);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "read_labels: ", sample.where(field), ": ", user_message(error));
  }
}

}  // namespace

std::vector<int64_t> read_labels(const Source& source, const std::string& key) {
  std::vector<int64_t> labels(static_cast<size_t>(source.size()));
  Sample sample;
  for (int64_t i = 0; i < source.size(); ++i) {
    source.read(i, sample);
    labels[static_cast<size_t>(i)] = label_of(sample, key);
  }
  return labels;
}

std::vector<int64_t> read_lengths(const Source& source, const std::string& field) {
  const int64_t samples = source.size();
  std::vector<int64_t> lengths(static_cast<size_t>(samples));
  constexpr int64_t at_a_time = 64;
  kernels::parallel_chunks((samples + at_a_time - 1) / at_a_time, [&](int64_t chunk) {
    Sample sample;
    for (int64_t i = chunk * at_a_time; i < std::min(samples, (chunk + 1) * at_a_time); ++i) {
      source.read(i, sample);
      const Field* found = sample.find(field);
      TORCH_CHECK_VALUE(found && (!found->is_array || !found->sizes.empty()), "read_lengths: ", sample.where(),
                        found ? " has a single value as \"" : " has no field \"", field, "\".");
      lengths[static_cast<size_t>(i)] = found->is_array ? found->sizes[0] : static_cast<int64_t>(found->bytes.size());
    }
  });
  return lengths;
}

}  // namespace bellows::data
