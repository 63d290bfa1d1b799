// Prints the evidence of tests/golden/monitor.json, one line for each answer, and the first random numbers.

#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>

#include "uce_edge_json.hpp"
#include "uce_edge_monitor.hpp"

int main(int, char** words) {
  using uce_edge::detail::Json;
  std::ifstream file(words[1]);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::string damage;
  const Json golden = uce_edge::detail::JsonParser(text, damage).document();
  if (!damage.empty()) return 1;
  const auto& kept = golden.at("monitor", Json::Kind::object).at("statistics", Json::Kind::object);
  const char* const names[] = {"uncertainty", "model_uncertainty", "novelty_score"};
  std::vector<uce_edge::MonitoredScore> scores;
  for (int number = 0; number < 3; ++number) {
    const Json& bins = kept.at(names[number], Json::Kind::object);
    uce_edge::MonitoredScore score{number, {}, {}};
    for (const Json& edge : bins.at("edges", Json::Kind::array).items) score.edges.push_back(float(edge.number));
    for (const Json& count : bins.at("counts", Json::Kind::array).items) {
      score.counts.push_back(static_cast<std::int64_t>(count.number));
    }
    scores.push_back(std::move(score));
  }
  const auto seed = static_cast<std::uint32_t>(golden.whole("seed", 0, 4294967295));
  uce_edge::Monitor monitor(std::move(scores), golden.at("alpha", Json::Kind::number).number, seed);
  std::cout << std::setprecision(17);
  for (const Json& answer : golden.at("answers", Json::Kind::array).items) {
    std::vector<float> values;
    for (const char* name : names) values.push_back(float(answer.at(name, Json::Kind::number).number));
    const bool alarm = monitor.add(values);
    std::cout << monitor.log_evidence() << " " << alarm << "\n";
  }
}
