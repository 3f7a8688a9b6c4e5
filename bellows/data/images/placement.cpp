#include "bellows/data/images/placement.h"

#include "bellows/data/images/resample.h"

namespace bellows::data {

ImageView part_of(const ImageView& image, const io::ImageRegion& part) {
  return {image.at(part.y, part.x), part.height, part.width, image.channels, image.row_stride, image.pixel_stride};
}

namespace {

/// The range of one side of the cut that positions [begin, end) of `size` depend on.
std::pair<int64_t, int64_t> needed_side(int64_t cut, int64_t size, int64_t begin, int64_t end) {
  if (cut == size) return {begin, end};
  const ScaledSide side{0, static_cast<double>(cut), cut, size};
  return {side.first(begin), side.last(end - 1)};
}

}  // namespace

Placement Placement::whole(int64_t height, int64_t width) {
  const io::ImageRegion all{0, 0, height, width};
  return {all, height, width, all, false};
}

void Placement::crop(io::ImageRegion part) {
  if (mirrored) part.x = window.width - part.x - part.width;
  window = {window.y + part.y, window.x + part.x, part.height, part.width};
  if (scaled()) return;
  cut = {cut.y + window.y, cut.x + window.x, window.height, window.width};
  *this = {cut, cut.height, cut.width, {0, 0, cut.height, cut.width}, mirrored};
}

bool Placement::scale(int64_t new_height, int64_t new_width) {
  if (window.height == new_height && window.width == new_width) return true;
  if (scaled() || mirrored) return false;  // the sums of a mirrored image would round differently
  height = new_height;
  width = new_width;
  window = {0, 0, height, width};
  return true;
}

io::ImageRegion Placement::needed() const {
  const auto [top, bottom] = needed_side(cut.height, height, window.y, window.y + window.height);
  const auto [left, right] = needed_side(cut.width, width, window.x, window.x + window.width);
  return {cut.y + top, cut.x + left, bottom - top, right - left};
}

int64_t Placement::shrink() const {
  int64_t by = 8;
  while (by > 1 && (cut.height < by * height || cut.width < by * width)) by /= 2;
  return by;
}

Transform placed(std::function<bool(Placement&, RandomStream&)> add, bool deterministic) {
  Transform step;
  step.deterministic = deterministic;
  step.run = [add](const ImageView& image, Scratch& scratch, RandomStream& random) {
    Placement placement = Placement::whole(image.height, image.width);
    const io::ImageRegion have = placement.cut;
    add(placement, random);
    return place(image, have, 1, placement, scratch);
  };
  step.place = std::move(add);
  return step;
}

ImageView place(const ImageView& image, const io::ImageRegion& have, int64_t shrink, const Placement& placement,
                Scratch& scratch) {
  const io::ImageRegion &cut = placement.cut, &window = placement.window;
  ImageView result;
  if (shrink == 1 && !placement.scaled()) {
    result = part_of(image, {cut.y - have.y, cut.x - have.x, cut.height, cut.width});
  } else {
    const auto side = [&](int64_t begin, int64_t size, int64_t of) {
      const double by = static_cast<double>(shrink), from = static_cast<double>(begin % shrink) / by;
      return ScaledSide{from, static_cast<double>(size) / by, (begin % shrink + size + shrink - 1) / shrink, of};
    };
    const ScaledSide rows = side(cut.y, cut.height, placement.height),
                     columns = side(cut.x, cut.width, placement.width);
    result = resample(image, {cut.y / shrink - have.y, cut.x / shrink - have.x}, rows, columns, window, scratch);
  }
  if (!placement.mirrored) return result;
  result.pixels = result.at(0, result.width - 1);
  result.pixel_stride = -result.pixel_stride;
  return result;
}

}  // namespace bellows::data
