// The betting step of the monitor: an alarm when a stream of answers no longer looks like those of the calibration.
// docs/science.md of uce-edge has the proof, and tests/golden/monitor.json what every port must give.

#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace uce_edge {

// One score: its bins, and how many images of the reference fall into each; the counts grow with the stream.
struct MonitoredScore {
  int number;                       // 0 uncertainty, 1 model uncertainty, 2 novelty score
  std::vector<float> edges;         // rising; bin i holds what is above edge i - 1 and up to edge i
  std::vector<std::int64_t> counts; // one more than edges
};

class Monitor {
 public:
  // `scores` as the metadata of a model file has them under "monitor"; `alpha` bounds the probability of ever raising a
  // false alarm.
  explicit Monitor(std::vector<MonitoredScore> scores, double alpha = 0.01, std::uint32_t seed = 0)
      : scores_(std::move(scores)), wealth_(scores_.size()), limit_(-std::log(alpha)), seed_(seed) {
    if (scores_.empty() || !(alpha > 0 && alpha < 1)) throw std::invalid_argument("a monitor needs scores, and 0 < alpha < 1");
    for (const MonitoredScore& score : scores_) {
      if (score.counts.size() != score.edges.size() + 1) throw std::invalid_argument("one count more than edges");
    }
    for (auto& bets : wealth_) bets.fill(nothing);
  }

  // Bets on one answer, whose scores are in the order of the constructor; returns whether the alarm is on.
  bool add(const std::vector<float>& values) {
    if (values.size() != scores_.size()) throw std::invalid_argument("one value for each score");
    for (const float value : values) {
      if (!std::isfinite(value)) throw std::invalid_argument("the scores of an answer are finite numbers");
    }
    ++step_;
    const double fresh = std::log(reserve(step_ - 1) - reserve(step_));
    double highest = -1e300;
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      MonitoredScore& score = scores_[i];
      const auto [p, rest] = place(score, values[i], uniform(seed_, step_, score.number));
      const std::array<double, bets> gains = log_gains(p, rest);
      for (std::size_t bet = 0; bet < bets; ++bet) wealth_[i][bet] = log_add(wealth_[i][bet], fresh) + gains[bet];
      highest = std::max(highest, total(wealth_[i]));
    }
    evidence_ = highest - std::log(double(scores_.size()));
    alarm_ = alarm_ || evidence_ >= limit_;
    return alarm_;
  }

  // The logarithm of the evidence now.
  double log_evidence() const { return evidence_; }
  bool alarm() const { return alarm_; }

  // A random number strictly between 0 and 1 for a stream, a step and a score.
  static double uniform(std::uint32_t seed, std::uint64_t step, int number) {
    std::uint32_t word = mixed(seed ^ 0x9E3779B9u);
    word = mixed(word + static_cast<std::uint32_t>(step) * 0x9E3779B1u);
    word = mixed(word ^ (static_cast<std::uint32_t>(number + 1) * 0x85EBCA6Bu));
    return (word + 0.5) / 4294967296.0;
  }

 private:
  static constexpr std::array<double, 5> powers{0.1, 0.3, 0.5, 0.7, 0.9};
  static constexpr std::array<double, 2> slopes{1.0, 1.8};
  static constexpr std::size_t bets = 2 * (powers.size() + slopes.size());
  static constexpr double nothing = -1e9;  // the logarithm of nothing

  static std::uint32_t mixed(std::uint32_t word) {
    word = (word ^ (word >> 16)) * 0x7FEB352Du;
    word = (word ^ (word >> 15)) * 0x846CA68Bu;
    return word ^ (word >> 16);
  }

  // The share of the money that bets only from a later step on.
  static double reserve(std::uint64_t step) { return 1 / std::log2(double(step) + 2); }

  static double log_add(double a, double b) {
    const double high = std::max(a, b);
    return high + std::log1p(std::exp(std::min(a, b) - high));
  }

  // The conformal p-value of a value and one minus it; the value then joins the reference.
  static std::pair<double, double> place(MonitoredScore& score, float value, double u) {
    const auto bin = static_cast<std::size_t>(
        std::lower_bound(score.edges.begin(), score.edges.end(), value) - score.edges.begin());
    double below = 0, above = 0;
    for (std::size_t i = 0; i < score.counts.size(); ++i) (i < bin ? below : above) += double(score.counts[i]);
    const double equal = double(score.counts[bin]);
    above -= equal;
    const double all = below + equal + above + 1;
    ++score.counts[bin];
    return {(above + u * (equal + 1)) / all, (below + (1 - u) * (equal + 1)) / all};
  }

  static std::array<double, bets> log_gains(double p, double rest) {
    std::array<double, bets> gains{};
    std::size_t at = 0;
    for (const double side : {p, rest}) {
      for (const double power : powers) gains[at++] = std::log(power) + (power - 1) * std::log(side);
      for (const double slope : slopes) gains[at++] = std::log1p(slope * (0.5 - side));
    }
    return gains;
  }

  // All the money of a score: the mean over the bets, and the reserve.
  double total(const std::array<double, bets>& wealth) const {
    const double top = *std::max_element(wealth.begin(), wealth.end());
    double sum = 0;
    for (const double value : wealth) sum += std::exp(value - top);
    return log_add(top + std::log(sum / double(bets)), std::log(reserve(step_)));
  }

  std::vector<MonitoredScore> scores_;
  std::vector<std::array<double, bets>> wealth_;
  double limit_;
  std::uint32_t seed_;
  std::uint64_t step_ = 0;
  double evidence_ = 0;
  bool alarm_ = false;
};

}  // namespace uce_edge
