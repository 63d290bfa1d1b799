// Prints what the header says of the contract as JSON. The arguments are pairs of an uncertainty and a threshold.

#include <cstdlib>
#include <iostream>

#include "uce_edge.hpp"

namespace {

template <typename Names>
void list(const char* key, const Names& names) {
  const char* comma = "";
  std::cout << ", \"" << key << "\": [";
  for (const char* name : names) {
    std::cout << comma << '"' << name << '"';
    comma = ", ";
  }
  std::cout << "]";
}

}  // namespace

int main(int count, char** values) {
  std::cout << "{\"contract\": " << uce_edge::contract_version << ", \"max_samples\": " << uce_edge::max_samples
            << ", \"max_seed\": " << uce_edge::max_seed;
  list("outputs", uce_edge::outputs);
  list("inference", uce_edge::inferences);
  std::cout << ", \"accepted\": [";
  for (int i = 1; i + 1 < count; i += 2) {
    uce_edge::Prediction prediction;
    prediction.uncertainty = static_cast<float>(std::strtod(values[i], nullptr));
    const bool rejected = prediction.rejected(static_cast<float>(std::strtod(values[i + 1], nullptr)));
    std::cout << (i > 1 ? ", " : "") << (rejected ? "false" : "true");
  }
  std::cout << "]}\n";
}
