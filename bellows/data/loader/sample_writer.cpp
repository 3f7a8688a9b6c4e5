#include "bellows/data/loader/sample_writer.h"

#include <ATen/core/Formatting.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "bellows/core/error.h"
#include "bellows/data/images/bad_image.h"
#include "bellows/data/images/placement.h"
#include "bellows/data/label.h"
#include "bellows/data/picture.h"
#include "bellows/data/step_error.h"

namespace bellows::data {

namespace {

io::ColorMode parse_mode(const std::string& mode) {
  TORCH_CHECK_VALUE(mode == "rgb" || mode == "gray", "decode: expected \"rgb\" or \"gray\", got \"", mode, "\".",
                    did_you_mean(mode, {"rgb", "gray"}));
  return mode == "rgb" ? io::ColorMode::rgb : io::ColorMode::gray;
}

size_t row_bytes(const RowSpec& row) {
  size_t count = 1;
  for (int64_t size : row.sizes) count *= static_cast<size_t>(size);
  return count * c10::elementSize(row.dtype);
}

/// The padding value as an element of this array type.
std::vector<std::byte> fill_element(const Padding& padding, c10::ScalarType dtype) {
  const c10::Scalar& value = padding.value;
  try {
    const at::Tensor element = at::full({1}, value, dtype);
    const bool exact = !c10::isIntegralType(dtype, true) ||
                       (value.isIntegral(true) && element.item().to<int64_t>() == value.to<int64_t>());
    const auto* data = static_cast<const std::byte*>(element.const_data_ptr());
    if (exact) return {data, data + element.nbytes()};
  } catch (const std::exception&) {  // out of range
  }
  TORCH_CHECK_VALUE(false, "pad: \"", padding.field, "\" is ", c10::toString(dtype), ", which cannot represent ", value,
                    ".");
}

/// For messages; * marks a size that may differ between samples.
std::string sizes_text(const RowSpec& row) {
  if (!row.padded()) return c10::str(c10::IntArrayRef(row.sizes));
  std::string text = "[*";
  for (const int64_t size : row.sizes) text += c10::str(", ", size);
  return text + "]";
}

/// Params: classes – 0: unknown
void check_class(int64_t label, int64_t classes) {
  TORCH_CHECK_VALUE(classes == 0 || (label >= 0 && label < classes), "expected a label in [0, ", classes, "), found ",
                    label, ". Check the number of classes, or the data.");
}

/// Runs `body`; adds the sample and its location to the message of a label error.
template <class F>
void run_on_label(const Sample& sample, const Field* label, const F& body) {
  try {
    body();
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, "label: ", sample.where(label), ": ", user_message(error));
  }
}

auto number_of(size_t step) {
  return [step] { return c10::str("transform ", step + 1); };
}

}  // namespace

bool is_typical(const Sample& sample) {
  const bool has_arrays = std::any_of(sample.fields.begin(), sample.fields.end(), std::mem_fn(&Field::is_array));
  return has_arrays || (find_picture(sample) && find_label_text(sample));
}

SampleWriter::SampleWriter(PipelineOptions options, Workspace& example)
    : options_(std::move(options)), mode_(parse_mode(options_.decode)) {
  while (deterministic_ < options_.transforms.size() && options_.transforms[deterministic_].deterministic)
    ++deterministic_;
  if (options_.cache_bytes > 0) cache_ = std::make_unique<ImageCache>(options_.cache_bytes);
  const Sample& sample = example.sample;
  has_image_ = find_picture(sample) != nullptr;
  has_label_ = find_label_text(sample) != nullptr;
  if (has_image_) learn_image(example);
  learn_arrays(sample);
  if (has_label_) add_row(Kind::label, "label", c10::ScalarType::Long, {});
  check_required(sample);
  TORCH_CHECK_VALUE(!rows_.empty(), "data: ", sample.where(), " contains ", sample.field_names(),
                    "; expected an image (png, jpg, jpeg), a label (cls, json) or arrays.");
}

void SampleWriter::add_row(Kind kind, std::string name, c10::ScalarType dtype, std::vector<int64_t> sizes) {
  RowSpec row{std::move(name), dtype, std::move(sizes), kind == Kind::image && options_.channels_last};
  row.bytes = row_bytes(row);
  rows_.push_back(std::move(row));
  kinds_.push_back(kind);
}

void SampleWriter::learn_arrays(const Sample& sample) {
  for (const Field& field : sample.fields) {
    if (!field.is_array || is_picture(field)) continue;
    TORCH_CHECK_VALUE(options_.transforms.empty() || field.name != "image",
                      "data: transforms need images of type uint8 [H, W, C], got \"image\" of type ",
                      c10::toString(field.dtype), " ", field.sizes, " (", sample.where(), ").");
    const auto padding = std::ranges::find(options_.padding, field.name, &Padding::field);
    if (padding != options_.padding.end()) {
      learn_padded(*padding, field, sample);
    } else {
      add_row(Kind::array, std::string(field.name), field.dtype, field.sizes.vec());
    }
  }
}

void SampleWriter::learn_padded(const Padding& padding, const Field& field, const Sample& sample) {
  const std::string lengths = padding.field + "_lengths";
  const Field* const other = sample.find(lengths);
  TORCH_CHECK_VALUE(!other || !other->is_array, "pad: ", sample.where(), " has \"", lengths, "\" already.");
  TORCH_CHECK_VALUE(!field.sizes.empty(), "pad: ", sample.where(&field), " has a single value as \"", padding.field,
                    "\"; expected an array [length, …].");
  add_row(Kind::array, padding.field, field.dtype, field.sizes.slice(1).vec());
  rows_.back().fill = fill_element(padding, field.dtype);
  rows_.back().multiple_of = padding.multiple_of;
  add_row(Kind::length, lengths, c10::ScalarType::Long, {});
}

void SampleWriter::check_required(const Sample& sample) const {
  for (const std::string& name : options_.required) {
    const bool found = std::any_of(rows_.begin(), rows_.end(), [&](const RowSpec& row) { return row.name == name; });
    const std::string missing = name == "image" ? "image" : name == "label" ? name : "\"" + name + "\"";
    TORCH_CHECK_VALUE(found, "data: ", sample.where(), " has no ", missing, "; it contains ", sample.field_names(),
                      ".");
  }
  for (const Padding& padding : options_.padding) {
    TORCH_CHECK_VALUE(std::ranges::any_of(rows_, [&](auto& row) { return row.padded() && row.name == padding.field; }),
                      "pad: ", sample.where(), " has no array \"", padding.field, "\"; it contains ",
                      sample.field_names(), ". Dataset::tokenize creates the array \"tokens\" from a text.");
  }
}

void SampleWriter::learn_image(Workspace& workspace) {
  prepare(workspace, 0);
  const ImageView& image = workspace.image;
  const c10::ScalarType dtype = options_.dtype;
  TORCH_CHECK_VALUE(
      dtype == c10::ScalarType::Float || dtype == c10::ScalarType::BFloat16 || dtype == c10::ScalarType::Byte,
      "data: expected the image type Float, BFloat16 or Byte, got ", c10::toString(dtype), ".");
  normalizer_.emplace(options_.mean, options_.std, image.channels);
  add_row(Kind::image, "image", dtype, {image.channels, image.height, image.width});
}

void SampleWriter::prepare(Workspace& workspace, uint64_t seed) const {
  workspace.seed = seed;
  if (has_image_) prepare_image(workspace, seed);
  if (has_label_) {
    workspace.clock.enter(LoadStage::decode);
    prepare_label(workspace);
  }
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (kinds_[i] == Kind::array) check_array(rows_[i], workspace.sample);
  }
  if (options_.num_classes > 0 && !has_label_) check_array_label(workspace.sample);
}

void SampleWriter::prepare_image(Workspace& workspace, uint64_t seed) const {
  const Sample& sample = workspace.sample;
  const Field* field = find_picture(sample);
  TORCH_CHECK_VALUE(field, "data: ", sample.where(), " has no image; it contains ", sample.field_names(), ".");
  const size_t all = options_.transforms.size(), kept = cache_ ? deterministic_ : all;
  const auto cached = cache_ ? cache_->find(sample.id) : std::nullopt;
  if (cached) {
    workspace.image = *cached;
  } else {
    const size_t done = decode(workspace, *field, kept, seed);
    run_steps(workspace, done, kept, seed);
    if (cache_) cache_->insert(sample.id, workspace.image);
  }
  run_steps(workspace, kept, all, seed);
}

/// Decodes the image into memory; returns how many of the transforms before `end` were applied in the process.
size_t SampleWriter::decode(Workspace& workspace, const Field& field, size_t end, uint64_t seed) const {
  if (field.is_array) {
    const int64_t h = field.sizes[0], w = field.sizes[1], c = field.sizes[2];
    workspace.image = {reinterpret_cast<const uint8_t*>(field.bytes.data()), h, w, c, w * c, c};
    return 0;
  }
  size_t done = 0;
  Placement placement;
  io::ImageInfo info;
  run_on_image(ImageStep::decode, workspace.sample, &field, [&] { info = io::image_info(field.bytes); });
  placement = Placement::whole(info.height, info.width);
  run_on_image(ImageStep::transform, workspace.sample, &field,
               [&] { done = collect(workspace.sample, placement, 0, end, seed); });
  const bool shrinks = options_.fast_decode && info.format == io::ImageFormat::jpeg;
  const int64_t shrink = shrinks ? placement.shrink() : 1;
  io::ImagePart part;
  run_on_image(ImageStep::decode, workspace.sample, &field, [&] {
    const io::ImageRegion region = shrink > 1 ? placement.cut : placement.needed();
    part = io::decode_image_part(field.bytes, {mode_, region, shrink, options_.fast_decode}, workspace.decoded);
  });
  const ImageView view{part.pixels,   part.region.height, part.region.width,
                       part.channels, part.row_stride,    part.channels};
  workspace.clock.enter(LoadStage::transform);
  run_on_image(ImageStep::transform, workspace.sample, &field,
               [&] { workspace.image = place(view, part.region, shrink, placement, workspace.scratch); });
  return done;
}

/// Adds transforms to the placement, starting at `begin`, as long as possible; returns the first one not added.
size_t SampleWriter::collect(const Sample& sample, Placement& placement, size_t begin, size_t end,
                             uint64_t seed) const {
  for (; begin < end; ++begin) {
    const Transform& step = options_.transforms[begin];
    RandomStream random(mix_seed(seed, begin));
    bool placed = false;
    if (step.place) run_step(number_of(begin), sample, [&] { placed = step.place(placement, random); });
    if (!placed) break;
  }
  return begin;
}

void SampleWriter::run_steps(Workspace& workspace, size_t begin, size_t end, uint64_t seed) const {
  if (begin == end) return;
  workspace.clock.enter(LoadStage::transform);
  ImageView& image = workspace.image;
  run_on_image(ImageStep::transform, workspace.sample, nullptr, [&] {
    while (begin < end) {
      Placement placement = Placement::whole(image.height, image.width);
      const io::ImageRegion all = placement.cut;
      const size_t next = collect(workspace.sample, placement, begin, end, seed);
      if (next > begin) {
        image = place(image, all, 1, placement, workspace.scratch);
        begin = next;
        continue;
      }
      RandomStream random(mix_seed(seed, begin));
      run_step(number_of(begin), workspace.sample,
               [&] { image = options_.transforms[begin].run(image, workspace.scratch, random); });
      ++begin;
    }
  });
}

void SampleWriter::prepare_label(Workspace& workspace) const {
  const Sample& sample = workspace.sample;
  const Field* field = find_label_text(sample);
  TORCH_CHECK_VALUE(field, "data: ", sample.where(), " has no label; it contains ", sample.field_names(), ".");
  run_on_label(sample, field, [&] {
    workspace.label = parse_label(*field, options_.label_key);
    check_class(workspace.label, options_.num_classes);
  });
}

void SampleWriter::check_array_label(const Sample& sample) const {
  const Field* field = sample.find("label");
  if (!field || !field->is_array || field->dtype != c10::ScalarType::Long || !field->sizes.empty()) return;
  int64_t label = 0;
  std::memcpy(&label, field->bytes.data(), sizeof(label));
  run_on_label(sample, field, [&] { check_class(label, options_.num_classes); });
}

size_t SampleWriter::bytes(size_t which, const Workspace& workspace) const {
  const RowSpec& row = rows_[which];
  return row.padded() ? row.bytes * static_cast<size_t>(workspace.sample.find(row.name)->sizes[0]) : row.bytes;
}

void SampleWriter::write(Workspace& workspace, std::span<std::byte* const> rows) const {
  workspace.clock.enter(LoadStage::write);
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (kinds_[i] == Kind::label) {
      std::memcpy(rows[i], &workspace.label, sizeof(workspace.label));
    } else if (kinds_[i] == Kind::array) {
      const size_t size = bytes(i, workspace);
      if (size > 0) std::memcpy(rows[i], workspace.sample.find(rows_[i].name)->bytes.data(), size);
    } else if (kinds_[i] == Kind::length) {
      const int64_t length = workspace.sample.find(rows_[i - 1].name)->sizes[0];
      std::memcpy(rows[i], &length, sizeof(length));
    } else {
      write_image(rows_[i], workspace, rows[i]);
    }
  }
}

void SampleWriter::write_image(const RowSpec& row, const Workspace& workspace, std::byte* out) const {
  const ImageView& image = workspace.image;
  const auto& sizes = row.sizes;
  TORCH_CHECK_VALUE(image.channels == sizes[0] && image.height == sizes[1] && image.width == sizes[2],
                    "data: ", workspace.sample.where(), ": the image is ", image.height, " x ", image.width, " x ",
                    image.channels, ", but the images before it are ", sizes[1], " x ", sizes[2], " x ", sizes[0],
                    ". All images of a batch need the same size. Add resize(height, width) or a crop.");
  if (!options_.pixels) return normalizer_->run(image, out, row.channels_last, row.dtype);
  RandomStream random(mix_seed(workspace.seed, options_.transforms.size()));
  try {
    options_.pixels(image, random, {out, row.dtype, row.channels_last});
  } catch (...) {  // fails for all images alike, so it is not a bad sample
    throw_step_error("pixels", workspace.sample);
  }
}

void SampleWriter::check_array(const RowSpec& row, const Sample& sample) {
  const Field* field = sample.find(row.name);
  TORCH_CHECK_VALUE(field && field->is_array, "data: ", sample.where(), " has no \"", row.name, "\"; it contains ",
                    sample.field_names(), ".");
  const size_t own = row.padded() ? 1 : 0;  // leading sizes that differ between samples
  const bool fits =
      field->dtype == row.dtype && field->sizes.size() >= own && field->sizes.slice(own) == c10::IntArrayRef(row.sizes);
  TORCH_CHECK_VALUE(fits, "data: ", sample.where(), ": \"", row.name, "\" is ", c10::toString(field->dtype), " ",
                    field->sizes, ", but in the samples before it is ", c10::toString(row.dtype), " ", sizes_text(row),
                    row.padded() ? ". Padded arrays need the same type, and the same size in all dims except the first."
                                 : ". All arrays of a batch need the same type and size. To batch arrays of different "
                                   "lengths, use Dataset::pad.");
}

}  // namespace bellows::data
