// Passes that were split over several calls: how many a call takes, and what follows from all of them together.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace uce_edge {

// Multiply-accumulates for one image, and bytes; 0 where nobody counted.
struct Costs {
  double macs_once = 0, macs_per_pass = 0, bytes_per_pass = 0, bytes_per_draw = 0;

  // Whether a pass is hardly more than a draw, so that all of them belong into one run of the network.
  bool runs_once() const { return 100 * macs_per_pass < macs_once; }
};

// What the output `decision` says of an image.
enum class Decision { accept, uncertain, out_of_distribution, both };

// What the output `decision` compares: needed where passes are split over several calls.
struct Rule {
  bool by_confidence = false;   // the score is 1 - confidence instead of the uncertainty
  std::vector<float> limits;    // of the score, one for every class; empty accepts every score
  std::optional<float> cutoff;  // of the novelty
};

// What the output `in_set` compares: needed where passes are split over several calls.
struct Sets {
  bool cumulative = false;    // the score is the sum of the larger probabilities instead of 1 - the probability
  std::vector<float> limits;  // one for every label
  double penalty = 0;         // of every rank behind the free ones
  double free = 0;
  std::int64_t samples = 0, seed = 0;  // the passes that the promise holds for
};

namespace detail {

// Image-passes that one call may hold, as in Python.
struct CallSize {
  static constexpr double most = 32;             // more make none of them faster
  static constexpr double cached = 25 << 20;     // bytes whose maps hardly leave a processor's caches
  static constexpr double most_drawn = 1 << 20;  // probabilities, where a pass is hardly more than a draw

  double rows = most;           // of the network proper
  double rows_per_call = most;  // where the network runs once, its draws

  CallSize() = default;
  CallSize(const std::optional<Costs>& costs, bool moments, double probabilities_per_pass, double memory, bool caches) {
    if (costs && costs->bytes_per_pass > 0) {
      rows = std::clamp(std::floor(memory / costs->bytes_per_pass), 1.0, most);
      if (caches && costs->bytes_per_draw > 0) rows = std::min(rows, std::max(1.0, std::floor(cached / costs->bytes_per_draw)));
    }
    rows_per_call = rows;
    if (!costs || !costs->runs_once() || !(costs->bytes_per_draw > 0 || moments)) return;  // else an older file
    const double affordable = std::floor(memory / std::max(costs->bytes_per_draw, 1.0));
    rows_per_call = std::max(rows, std::min(affordable, std::floor(most_drawn / probabilities_per_pass)));
  }

  std::size_t images(std::size_t samples) const {
    return static_cast<std::size_t>(std::max(1.0, std::min(rows, std::floor(rows_per_call / double(samples)))));
  }
  std::size_t passes() const { return static_cast<std::size_t>(std::max(1.0, rows_per_call)); }
};

// What the graph gives for the probabilities of these passes when one call draws them all.
struct Summary {
  std::vector<float> probabilities;
  std::size_t class_id = 0;
  float uncertainty = 0, model_uncertainty = 0, standard_error = 0, error_probability = 0;
};

// `passes` is [seeds * members, classes], seed by seed; `error` has the parameters of the error map: two of the
// confidence, three of the uncertainty in an older file, or nothing. The members of an ensemble are no draws: the standard error is that of the seeds' averages over them.
inline Summary summarise(const std::vector<float>& passes, std::size_t classes, std::size_t members,
                         const std::vector<double>& error) {
  const std::size_t rows = passes.size() / classes, seeds = rows / members;
  const double scale = -1 / std::log(double(classes));
  const auto log_of = [](double p) { return std::log(std::max(p, 1e-30)); };
  std::vector<double> mean(classes), cross(seeds);
  for (std::size_t i = 0; i < passes.size(); ++i) mean[i % classes] += double(passes[i]) / double(rows);
  double total = 0, data = 0;
  for (const double p : mean) total += scale * p * log_of(p);
  total = std::clamp(total, 0.0, 1.0);
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const double p = passes[i];
    data += scale * p * log_of(p) / double(rows);
    // Delta method: the entropy of the mean is the mean of the passes' cross-entropies to it.
    cross[i / classes / members] += scale * p * log_of(mean[i % classes]) / double(members);
  }
  double centre = 0, squares = 0;
  for (const double value : cross) centre += value / double(seeds);
  for (const double value : cross) squares += (value - centre) * (value - centre);
  const double spread = seeds == 1 ? 1 : std::sqrt(squares / double(seeds - 1) / double(seeds));
  Summary result;
  result.probabilities.assign(mean.begin(), mean.end());
  result.uncertainty = float(total);
  result.model_uncertainty = float(std::clamp(total - data, 0.0, 1.0));
  result.standard_error = float(std::min(spread, 1.0));
  const auto& shares = result.probabilities;
  result.class_id = std::size_t(std::max_element(shares.begin(), shares.end()) - shares.begin());
  const float doubt = 1 - shares[result.class_id];
  if (error.empty()) {
    result.error_probability = doubt;
  } else {
    const double inside = std::clamp(double(error.size() == 2 ? doubt : result.uncertainty), 1e-6, 1 - 1e-6);
    const double logit = error[0] + error[1] * std::log(inside) - error.back() * std::log1p(-inside);
    result.error_probability = float(1 / (1 + std::exp(-logit)));
  }
  return result;
}

// The output `decision` for all passes together. A comparison with NaN is false, so NaN rejects.
inline Decision decide(const Rule& rule, const Summary& answer, float novelty) {
  const float score = rule.by_confidence ? 1 - answer.probabilities[answer.class_id] : answer.uncertainty;
  const bool certain = rule.limits.empty() ? !std::isnan(score) : score <= rule.limits[answer.class_id];
  const bool familiar = !rule.cutoff || novelty > *rule.cutoff;
  return Decision((certain ? 0 : int(Decision::uncertain)) + (familiar ? 0 : int(Decision::out_of_distribution)));
}

// The output `in_set` for all passes together. Sums of multiples of 2^-22 are exact; NaN has an empty set.
inline std::vector<bool> contained(const Sets& sets, const std::vector<float>& probabilities) {
  constexpr double grains = 1 << 22, most_penalty = 2;
  constexpr std::size_t ranked = 128;
  const std::size_t classes = probabilities.size();
  std::vector<bool> inside(classes);
  for (const float p : probabilities) {
    if (std::isnan(p)) return inside;
  }
  std::vector<double> coarse, likely;
  if (sets.cumulative) {
    for (const float p : probabilities) coarse.push_back(std::floor(double(p) * grains) / grains);
    likely = coarse;
    std::sort(likely.begin(), likely.end(), std::greater<double>());
    likely.resize(std::min(classes, ranked));
  }
  for (std::size_t i = 0; i < classes; ++i) {
    double score = 1 - probabilities[i];  // in float
    if (sets.cumulative) {
      double rank = 0;  // equal ones have the worst
      score = 0;
      for (const double p : likely) {
        if (p > coarse[i]) score += p;
        if (p >= coarse[i]) rank += 1;
      }
      score += std::min(sets.penalty * std::max(rank - sets.free, 0.0), most_penalty);
    }
    inside[i] = float(score) <= sets.limits[i];
  }
  return inside;
}

}  // namespace detail
}  // namespace uce_edge
