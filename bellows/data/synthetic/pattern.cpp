#include "bellows/data/synthetic/pattern.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "bellows/data/synthetic/synthetic_images.h"

namespace bellows::data {

namespace {

double square(double x) {
  return x * x;
}

/// The distance to the last whole number, in [0, 1).
double fraction(double x) {
  return x - std::floor(x);
}

/// A wave between 0 and 1 with period 1.
double triangle_wave(double x) {
  return 2 * std::abs(fraction(x) - 0.5);
}

bool is_odd(double whole) {
  return fraction(whole / 2) != 0;
}

/// A row of the table of classes. `share` returns the share of the foreground at a point relative to the center, in
/// units of the radius or period.
struct PatternRow {
  const char* name;
  double (*share)(double u, double v);
};

constexpr std::array pattern_rows = {
    // Shapes with radius 1.
    PatternRow{"disk", [](double u, double v) -> double { return square(u) + square(v) < 1; }},
    PatternRow{"ring",
               [](double u, double v) -> double {
                 const double radius = square(u) + square(v);
                 return radius < 1 && radius > 0.36;
               }},
    PatternRow{"square", [](double u, double v) -> double { return std::max(std::abs(u), std::abs(v)) < 0.85; }},
    PatternRow{"frame",
               [](double u, double v) -> double {
                 const double side = std::max(std::abs(u), std::abs(v));
                 return side < 0.9 && side > 0.55;
               }},
    PatternRow{"triangle", [](double u, double v) -> double { return v > -0.5 && 1.75 * std::abs(u) + v < 1; }},
    PatternRow{"cross",
               [](double u, double v) -> double {
                 return std::min(std::abs(u), std::abs(v)) < 0.28 && std::max(std::abs(u), std::abs(v)) < 1;
               }},
    PatternRow{"half_disk", [](double u, double v) -> double { return square(u) + square(v + 0.4) < 1 && v > -0.4; }},
    PatternRow{"star",
               [](double u, double v) -> double { return std::sqrt(std::abs(u)) + std::sqrt(std::abs(v)) < 1.1; }},
    PatternRow{"bar", [](double u, double v) -> double { return std::abs(u) < 1 && std::abs(v) < 0.25; }},
    PatternRow{
        "crescent",
        [](double u, double v) -> double { return square(u) + square(v) < 1 && square(u - 0.5) + square(v) > 0.7; }},
    // Textures with period 1.
    PatternRow{"stripes", [](double u, double) -> double { return fraction(u) < 0.5; }},
    PatternRow{"checks", [](double u, double v) -> double { return is_odd(std::floor(2 * u) + std::floor(2 * v)); }},
    PatternRow{
        "dots",
        [](double u, double v) -> double { return square(fraction(u) - 0.5) + square(fraction(v) - 0.5) < 0.1; }},
    PatternRow{"circles",
               [](double u, double v) -> double { return fraction(std::sqrt(square(u) + square(v))) < 0.5; }},
    PatternRow{"grid", [](double u, double v) -> double { return fraction(u) < 0.2 || fraction(v) < 0.2; }},
    PatternRow{"bricks",
               [](double u, double v) -> double {
                 const double shift = is_odd(std::floor(2 * v)) ? 0.5 : 0.0;
                 return fraction(2 * v) < 0.2 || fraction(u + shift) < 0.1;
               }},
    PatternRow{"zigzag", [](double u, double v) -> double { return fraction(v + 0.6 * triangle_wave(u)) < 0.5; }},
    PatternRow{"waves", [](double u, double) -> double { return triangle_wave(u); }},
    // Their shares come from Clouds.
    PatternRow{"speckles", nullptr},
    PatternRow{"clouds", nullptr},
};

constexpr int64_t first_texture = 10, speckles = 18;

}  // namespace

const std::vector<std::string>& synthetic_classes() {
  static const std::vector<std::string> classes = [] {
    std::vector<std::string> names;
    names.reserve(pattern_rows.size());
    for (const PatternRow& row : pattern_rows) names.emplace_back(row.name);
    return names;
  }();
  return classes;
}

Clouds::Clouds(double period, RandomStream& random) : period_(period), seed_(random.next()) {}

double Clouds::value(int64_t column, int64_t row) const {
  return RandomStream(mix_seed(seed_, static_cast<uint64_t>(column), static_cast<uint64_t>(row))).uniform();
}

double Clouds::at(double x, double y) const {
  const double u = x / period_, v = y / period_, a = fraction(u), b = fraction(v);
  const auto column = static_cast<int64_t>(std::floor(u)), row = static_cast<int64_t>(std::floor(v));
  const double top = value(column, row) + a * (value(column + 1, row) - value(column, row));
  const double bottom = value(column, row + 1) + a * (value(column + 1, row + 1) - value(column, row + 1));
  return top + b * (bottom - top);
}

Pattern::Pattern(int64_t label, double size, RandomStream& random)
    : label_(label),
      x_(size * (0.35 + 0.3 * random.uniform())),
      y_(size * (0.35 + 0.3 * random.uniform())),
      scale_(size * (label < first_texture ? 0.18 + 0.17 * random.uniform() : 0.14 + 0.14 * random.uniform())),
      clouds_(label == speckles ? 2 : scale_, random) {
  // A random angle without sines, which differ between machines: half of the tangent, then a quarter turn.
  const double t = 2 * random.uniform() - 1;
  cosine_ = (1 - t * t) / (1 + t * t);
  sine_ = 2 * t / (1 + t * t);
  if (random.below(2) == 1) std::swap(cosine_, sine_);
  if (random.below(2) == 1) cosine_ = -cosine_;
}

double Pattern::at(double x, double y) const {
  const auto& share = pattern_rows[static_cast<size_t>(label_)].share;
  if (!share) {
    const double value = clouds_.at(x, y);
    return label_ == speckles ? static_cast<double>(value > 0.6) : value;
  }
  const double dx = (x - x_) / scale_, dy = (y - y_) / scale_;
  return share(cosine_ * dx + sine_ * dy, cosine_ * dy - sine_ * dx);
}

}  // namespace bellows::data
