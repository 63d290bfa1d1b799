// Resizes 8-bit images as Pillow does, to the byte (docs/contract.md); needs nothing but the standard library.
//
//     uce_edge::Frame frame{pixels, 1920, 1080, 3, 0};
//     auto small = uce_edge::resized<std::uint8_t>(frame, {224, 224, 3}, model.metadata().resize);
//
// Memory grows with the result and with the sides of the frame, not with its area: rows are read once, from the top.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace uce_edge {

enum class ResizeMode { stretch, crop, pad };
enum class ResizeFilter { bilinear, bicubic, lanczos };
constexpr std::int64_t max_side = 65535;  // of a resized image, before a cut
// By their number, as in JSON.
inline constexpr const char* resize_modes[] = {"stretch", "crop", "pad"};
inline constexpr const char* resize_filters[] = {"bilinear", "bicubic", "lanczos"};

// How an image of any size becomes one of the model's size.
struct Resize {
  ResizeMode mode = ResizeMode::stretch;
  ResizeFilter filter = ResizeFilter::bilinear;
  std::int64_t size = 0;           // of the shorter side, before `crop` cuts the middle out
  std::vector<std::uint8_t> fill;  // around what `pad` fits in: one value, or one for each channel; none is black
};

// An 8-bit image of any size: rows from the top, channels last, gray or RGB. It stays where it is.
struct Frame {
  const std::uint8_t* pixels = nullptr;
  std::int64_t width = 0, height = 0, channels = 0;
  std::ptrdiff_t stride = 0;  // bytes from one row to the next, negative for rows from below; 0 for rows without a gap
};

// What a model takes.
struct Shape {
  std::int64_t width = 0, height = 0, channels = 0;
};

namespace detail {

// One direction of a resize: `from` pixels become `to`, of which `count` are used from `first` on, at `place`.
struct Axis {
  std::int64_t from, to, first, place, count;
};

inline Axis stretched(std::int64_t from, std::int64_t to) { return {from, to, 0, 0, to}; }

inline Axis cropped(std::int64_t from, std::int64_t shorter, std::int64_t size, std::int64_t count) {
  const std::int64_t to = size * from / shorter;
  return {from, to, (to - count) / 2, 0, count};
}

// The side of an image that fills its room less than the other, which `filled` pixels become `room`.
inline Axis padded(std::int64_t from, std::int64_t filled, std::int64_t room, std::int64_t all) {
  const std::int64_t to = std::max<std::int64_t>(1, (2 * from * room + filled) / (2 * filled));
  return {from, to, 0, (all - to) / 2, to};
}

struct Axes {
  Axis across, down;
};

inline Axes axes(std::int64_t width, std::int64_t height, const Shape& to, const Resize& how) {
  if (how.mode == ResizeMode::crop) {
    const std::int64_t shorter = std::min(width, height);
    return {cropped(width, shorter, how.size, to.width), cropped(height, shorter, how.size, to.height)};
  }
  if (how.mode == ResizeMode::pad && width * to.height >= height * to.width) {
    return {stretched(width, to.width), padded(height, width, to.width, to.height)};
  }
  if (how.mode == ResizeMode::pad) return {padded(width, height, to.height, to.width), stretched(height, to.height)};
  return {stretched(width, to.width), stretched(height, to.height)};
}

inline double support(ResizeFilter filter) { return 1 + double(filter); }

inline double sinc(double x) {
  if (x == 0) return 1;
  x *= 3.14159265358979323846;
  return std::sin(x) / x;
}

inline double filtered(ResizeFilter filter, double x) {
  x = std::abs(x);
  if (x >= support(filter)) return 0;
  if (filter == ResizeFilter::bilinear) return 1 - x;
  if (filter == ResizeFilter::lanczos) return sinc(x) * sinc(x / 3);
  constexpr double a = -0.5;
  return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : (((x - 5) * x + 8) * x - 4) * a;
}

// How pixels are weighed: 8 bits in whole numbers with 22 bits behind the point, float32 in double.
template <typename Pixel>
struct Weighing {
  using Weight = double;
  static constexpr double start = 0;
  static Weight weight(double share) { return share; }
  static Pixel pixel(double sum) { return static_cast<Pixel>(sum); }
};

template <>
struct Weighing<std::uint8_t> {
  using Weight = std::int32_t;  // of sums too: the weights of a pixel are less than 2 in all, whatever their signs
  static constexpr std::int32_t bits = 22, start = 1 << (bits - 1);
  static Weight weight(double share) { return Weight(share * (1 << bits) + (share < 0 ? -0.5 : 0.5)); }
  static std::uint8_t pixel(std::int32_t sum) { return sum < 0 ? 0 : std::uint8_t(std::min(sum >> bits, 255)); }
};

// What the used pixels of an axis are made of: `counts[i]` weights, for the pixels from `starts[i]` on.
template <typename Weight>
struct Taps {
  std::vector<std::int64_t> starts, counts;
  std::vector<std::size_t> places;  // of the first weight
  std::vector<Weight> weights;

  std::int64_t end(std::size_t i) const { return starts[i] + counts[i]; }
};

template <typename Pixel>
auto taps(const Axis& axis, ResizeFilter filter) {
  using Rule = Weighing<Pixel>;
  Taps<typename Rule::Weight> found;
  const double scale = double(axis.from) / double(axis.to), wide = std::max(scale, 1.0);
  const double reach = support(filter) * wide, narrow = 1 / wide;
  std::vector<double> shares;
  for (std::int64_t i = axis.first; i < axis.first + axis.count; ++i) {
    const double centre = (double(i) + 0.5) * scale;
    std::int64_t start = std::max<std::int64_t>(0, std::int64_t(centre - reach + 0.5));
    std::int64_t end = std::min(axis.from, std::int64_t(centre + reach + 0.5));
    if (axis.from == axis.to) start = i, end = i + 1;  // nothing to do: each pixel is itself
    shares.clear();
    double sum = 0;
    for (std::int64_t at = start; at < end; ++at) {
      shares.push_back(filtered(filter, (double(at) - centre + 0.5) * narrow));
      sum += shares.back();
    }
    found.starts.push_back(start);
    found.counts.push_back(end - start);
    found.places.push_back(found.weights.size());
    for (const double share : shares) found.weights.push_back(Rule::weight(sum != 0 ? share / sum : share));
  }
  return found;
}

// The pixels `first` to `last` of a row with the channels of the model: where they lie, or in `copy`.
inline const std::uint8_t* coloured(const std::uint8_t* row, std::int64_t first, std::int64_t last, std::int64_t has,
                                    std::int64_t wanted, std::vector<std::uint8_t>& copy) {
  row += first * has;
  if (has == wanted) return row;
  copy.resize(std::size_t((last - first) * wanted));
  for (std::int64_t x = 0; x < last - first; ++x) {
    const std::uint8_t* pixel = row + x * has;
    if (wanted == 1) {  // Pillow's gray, ITU-R 601
      copy[std::size_t(x)] = std::uint8_t((pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16);
    } else {
      std::fill_n(copy.begin() + 3 * x, 3, *pixel);
    }
  }
  return copy.data();
}

}  // namespace detail

// Why a frame cannot become the model's image; empty when it can. Gray and RGB become each other.
inline std::string unusable(const Frame& frame, const Shape& to, const Resize& how) {
  const std::int64_t channels = to.channels;
  const auto expected = [](const std::string& name, const std::string& rule, std::int64_t value) {
    return "Expected `" + name + "` to be " + rule + ", but got " + std::to_string(value) + ".";
  };
  if (frame.pixels == nullptr) return "Expected `frame` to be pixels, but got none.";
  constexpr std::int64_t most = INT32_MAX;
  if (frame.width < 1 || frame.width > most) return expected("width", "between 1 and 2147483647", frame.width);
  if (frame.height < 1 || frame.height > most) return expected("height", "between 1 and 2147483647", frame.height);
  const bool colours = (channels == 1 || channels == 3) && (frame.channels == 1 || frame.channels == 3);
  if (frame.channels != channels && !colours) {
    const bool known = channels == 1 || channels == 3;
    return expected("channels", known ? "1 (gray) or 3 (RGB)" : std::to_string(channels), frame.channels);
  }
  const std::int64_t row = frame.width * frame.channels;
  if (frame.stride != 0 && std::abs(std::int64_t(frame.stride)) < row) {
    return expected("stride", "at least the " + std::to_string(row) + " bytes of a row", frame.stride);
  }
  const detail::Axes axes = detail::axes(frame.width, frame.height, to, how);
  if (std::max(axes.across.to, axes.down.to) <= max_side) return {};
  const auto shown = [](std::int64_t w, std::int64_t h) { return std::to_string(w) + " x " + std::to_string(h); };
  return "The image is " + shown(frame.width, frame.height) + " pixels, and would be " +
         shown(axes.across.to, axes.down.to) + " before the middle is cut out; at most " + std::to_string(max_side) +
         " on a side are made. Cut out a less narrow part first.";
}

// The pixels that a model takes: uint8, or float for a float32 model, which are not rounded. `unusable` must be empty.
template <typename Pixel>
std::vector<Pixel> resized(const Frame& frame, const Shape& to, const Resize& how) {
  using Rule = detail::Weighing<Pixel>;
  using Sum = typename Rule::Weight;
  const detail::Axes axes = detail::axes(frame.width, frame.height, to, how);
  const auto across = detail::taps<Pixel>(axes.across, how.filter);
  const auto down = detail::taps<Pixel>(axes.down, how.filter);
  const auto wide = std::size_t(axes.across.count), high = std::size_t(axes.down.count);
  const auto channels = std::size_t(to.channels), length = wide * channels;
  const std::int64_t left = across.starts.front(), right = across.end(wide - 1);
  const std::ptrdiff_t stride = frame.stride != 0 ? frame.stride : std::ptrdiff_t(frame.width * frame.channels);

  std::vector<Sum> sums(high * length, Rule::start);
  std::vector<Pixel> line(length);
  std::vector<std::uint8_t> copy;
  std::size_t top = 0;  // the first row of the result that this row of the frame is a part of
  for (std::int64_t y = down.starts.front(); y < down.end(high - 1); ++y) {
    const auto* row = detail::coloured(frame.pixels + y * stride, left, right, frame.channels, to.channels, copy);
    for (std::size_t x = 0; x < wide; ++x) {
      const Sum* weights = across.weights.data() + across.places[x];
      const std::uint8_t* pixels = row + std::size_t(across.starts[x] - left) * channels;
      for (std::size_t c = 0; c < channels; ++c) {
        Sum sum = Rule::start;
        for (std::size_t i = 0; i < std::size_t(across.counts[x]); ++i) sum += pixels[i * channels + c] * weights[i];
        line[x * channels + c] = Rule::pixel(sum);
      }
    }
    while (down.end(top) <= y) ++top;
    for (std::size_t i = top; i < high && down.starts[i] <= y; ++i) {
      const Sum weight = down.weights[down.places[i] + std::size_t(y - down.starts[i])];
      for (std::size_t x = 0; x < length; ++x) sums[i * length + x] += line[x] * weight;
    }
  }

  std::vector<Pixel> result(std::size_t(to.height * to.width) * channels);
  for (std::size_t i = 0; i < result.size() && !how.fill.empty(); ++i) {
    result[i] = Pixel(how.fill[how.fill.size() == 1 ? 0 : i % channels]);
  }
  for (std::size_t y = 0; y < high; ++y) {
    const std::size_t place = std::size_t(axes.down.place) + y;
    auto target = result.begin() + std::ptrdiff_t((place * std::size_t(to.width) + std::size_t(axes.across.place)) * channels);
    std::transform(sums.begin() + std::ptrdiff_t(y * length), sums.begin() + std::ptrdiff_t((y + 1) * length), target,
                   Rule::pixel);
  }
  return result;
}

}  // namespace uce_edge
