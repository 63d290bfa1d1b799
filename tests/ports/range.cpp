// Reads a count, the low and the high end of a range (or "none none") and 16-bit gray values; prints their 8 bits.

#include <iostream>
#include <string>

#include "uce_edge_range.hpp"

int main() {
  std::size_t count = 0;
  std::string low, high;
  while (std::cin >> count >> low >> high) {
    std::vector<std::uint16_t> gray(count);
    for (auto& value : gray) std::cin >> value;
    std::optional<uce_edge::Range> range;
    if (low != "none") range = uce_edge::Range{std::stod(low), std::stod(high)};
    for (const int value : uce_edge::to_8_bits(gray, range)) std::cout << value << " ";
    std::cout << "\n";
  }
}
