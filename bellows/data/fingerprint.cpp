#include "bellows/data/fingerprint.h"

#include <c10/util/Exception.h>

#include <bit>
#include <cstdio>

#include "bellows/core/seed.h"
#include "bellows/data/for_each_spaced.h"
#include "bellows/io/bytes.h"
#include "bellows/io/crc32.h"

namespace bellows::data {

namespace {

constexpr int64_t most_described = 65'536;
constexpr int64_t most_read = 256;

/// A running checksum that is the same on every machine.
class Mixture {
 public:
  void add(uint64_t number) { value_ = mix_seed(value_, number); }
  void add(std::span<const std::byte> bytes) { value_ = mix_seed(value_, bytes.size(), io::crc32(bytes)); }
  void add(std::string_view text) { add(io::as_bytes(text)); }
  void add(const std::vector<double>& numbers) {
    for (const double number : numbers) add(std::bit_cast<uint64_t>(number));
    add(numbers.size());
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

/// Returns false if the sample cannot be read; datasets with such samples have a fingerprint, too.
bool read_sample(const Source& source, int64_t index, Sample& sample) {
  try {
    source.read(index, sample);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

void add_description(const Sample& sample, Mixture& mixture) {
  mixture.add(static_cast<uint64_t>(sample.id));
  mixture.add(sample.key);
  mixture.add(sample.file.substr(sample.file.rfind('/') + 1));
  for (const Field& field : sample.fields) {
    mixture.add(field.name);
    mixture.add(field.bytes.size());
    mixture.add(static_cast<uint64_t>(field.dtype));
    for (const int64_t size : field.sizes) mixture.add(static_cast<uint64_t>(size));
  }
}

void add_samples(const Source& source, Mixture& mixture) {
  Sample sample;
  for_each_spaced(source.size(), most_described, [&](int64_t index) {
    if (read_sample(source, index, sample)) add_description(sample, mixture);
  });
  for_each_spaced(source.size(), most_read, [&](int64_t index) {
    if (!read_sample(source, index, sample)) return;
    for (const Field& field : sample.fields) mixture.add(field.bytes);
  });
}

}  // namespace

std::string fingerprint(const Dataset& dataset) {
  Mixture mixture;
  mixture.add(static_cast<uint64_t>(dataset.size()));
  for (const std::string& name : dataset.info().classes) mixture.add(name);
  mixture.add(dataset.info().mean);
  mixture.add(dataset.info().std);
  const Source* stored = dataset.source().get();
  while (const auto* derived = dynamic_cast<const Derived*>(stored)) stored = derived->origin().get();
  if (stored->stored()) add_samples(*stored, mixture);
  char text[64];
  std::snprintf(text, sizeof(text), "%lld samples, %016llx", static_cast<long long>(dataset.size()),
                static_cast<unsigned long long>(mixture.value()));
  return text;
}

}  // namespace bellows::data
