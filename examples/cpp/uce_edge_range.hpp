// Gray values of more than 8 bits: which of them is black, and which white (docs/contract.md, "More than 8 bits").
//
//     auto pixels = uce_edge::to_8_bits(camera, model.metadata().range);   // then resize them, and predict

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

namespace uce_edge {

// The raw values that become 0 and 255.
struct Range {
  double low = 0;
  double high = 65535;
};

// From 0 to 255, not rounded: what a float32 model takes. Without a stored range, all 16 bits count.
inline double shown(double value, const Range& range) {
  return std::clamp((value - range.low) * 255 / (range.high - range.low), 0.0, 255.0);
}

// The same in whole numbers: what a uint8 model takes.
inline std::vector<std::uint8_t> to_8_bits(const std::vector<std::uint16_t>& gray, const std::optional<Range>& range) {
  std::vector<std::uint8_t> bytes(gray.size());
  std::transform(gray.begin(), gray.end(), bytes.begin(), [used = range.value_or(Range{})](std::uint16_t value) {
    return static_cast<std::uint8_t>(std::floor(shown(value, used) + 0.5));
  });
  return bytes;
}

}  // namespace uce_edge
