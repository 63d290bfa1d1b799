// Prints the contract of the header as JSON. The arguments are pairs of an uncertainty and a threshold.

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "uce_edge.hpp"

namespace {

using Words = std::vector<std::string>;

template <std::size_t size>
Words quoted(const char* const (&names)[size]) {
  Words result;
  for (const char* name : names) result.push_back('"' + std::string(name) + '"');
  return result;
}

void list(const char* key, const Words& values) {
  std::cout << ", \"" << key << "\": [";
  for (std::size_t i = 0; i < values.size(); ++i) std::cout << (i > 0 ? ", " : "") << values[i];
  std::cout << "]";
}

}  // namespace

int main(int count, char** values) {
  std::cout << "{\"contract\": " << uce_edge::contract_version << ", \"max_samples\": " << uce_edge::max_samples
            << ", \"max_seed\": " << uce_edge::max_seed;
  list("outputs", quoted(uce_edge::outputs));
  list("optional", quoted(uce_edge::optional_outputs));
  list("inference", quoted(uce_edge::inferences));
  list("reasons", quoted(uce_edge::reasons));
  Words accepted;
  for (int i = 1; i + 1 < count; i += 2) {
    uce_edge::Prediction prediction;
    prediction.uncertainty = static_cast<float>(std::strtod(values[i], nullptr));
    const auto threshold = static_cast<float>(std::strtod(values[i + 1], nullptr));
    accepted.push_back(prediction.is_uncertain(threshold) ? "false" : "true");
  }
  list("accepted", accepted);
  std::cout << "}\n";
}
