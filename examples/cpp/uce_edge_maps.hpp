// Heatmaps: a value for every place of the network's last feature map, and the maps of several calls as one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace uce_edge {

// One map, rows from the top.
struct Map {
  std::size_t height = 0, width = 0;
  std::vector<float> values;
};

namespace detail {

// Sums of the maps of several calls, each of which is about the class that its own passes predict.
class PooledMaps {
 public:
  void add(std::size_t passes, std::int32_t class_id, const Map& mean, const Map* spread) {
    const std::size_t places = mean.values.size();
    agree_ = agree_ && (passes_ == 0 || (class_id == class_id_ && places == sums_.size()));
    class_id_ = class_id, height_ = mean.height, width_ = mean.width;
    sums_.resize(places), squares_.resize(places);
    for (std::size_t i = 0; i < places; ++i) {
      const double value = mean.values[i], other = spread == nullptr ? 0 : spread->values[i];
      sums_[i] += double(passes) * value;
      squares_[i] += double(passes) * (value * value + other * other);
    }
    passes_ += passes;
  }

  // Mean and deviation over all passes; nothing where a call is about another class.
  void of(std::int32_t class_id, std::optional<Map>& mean, std::optional<Map>* spread) const {
    if (passes_ == 0 || !agree_ || class_id != class_id_) return;
    Map first{height_, width_, {}}, second = first;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      const double value = sums_[i] / double(passes_);
      first.values.push_back(float(value));
      second.values.push_back(float(std::sqrt(std::max(0.0, squares_[i] / double(passes_) - value * value))));
    }
    mean = first;
    if (spread != nullptr) *spread = second;
  }

 private:
  std::size_t passes_ = 0, height_ = 0, width_ = 0;
  std::int32_t class_id_ = 0;
  bool agree_ = true;
  std::vector<double> sums_, squares_;
};

}  // namespace detail
}  // namespace uce_edge
