// Resizes frames as words on stdin ask: "MODE FILTER SIZE FILL WIDTH HEIGHT CHANNELS TO-WIDTH TO-HEIGHT TO-CHANNELS
// TYPE", then the pixels as bytes; FILL is a number, or one for each channel between commas. Writes the result's bytes.

#include <iostream>
#include <sstream>
#include <string>

#include "uce_edge_resize.hpp"

namespace {

template <std::size_t count>
int place(const char* const (&names)[count], const std::string& name) {
  return int(std::find(std::begin(names), std::end(names), name) - std::begin(names));
}

template <typename Pixel>
void answer(const uce_edge::Frame& frame, const uce_edge::Shape& to, const uce_edge::Resize& how) {
  const auto pixels = uce_edge::resized<Pixel>(frame, to, how);
  std::cout.write(reinterpret_cast<const char*>(pixels.data()), std::streamsize(pixels.size() * sizeof(Pixel)));
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string mode, filter, fill, type;
    uce_edge::Resize how;
    uce_edge::Frame frame;
    uce_edge::Shape to;
    words >> mode >> filter >> how.size >> fill >> frame.width >> frame.height >> frame.channels;
    words >> to.width >> to.height >> to.channels >> type;
    how.mode = uce_edge::ResizeMode(place(uce_edge::resize_modes, mode));
    how.filter = uce_edge::ResizeFilter(place(uce_edge::resize_filters, filter));
    std::istringstream colours(fill);
    for (std::string colour; std::getline(colours, colour, ',');) how.fill.push_back(std::uint8_t(std::stoi(colour)));
    // The last row first, with a gap after each: a frame may lie like that.
    const std::int64_t row = frame.width * frame.channels, gap = 5;
    std::vector<std::uint8_t> pixels(std::size_t((row + gap) * frame.height), 99);
    for (std::int64_t y = frame.height - 1; y >= 0; --y) {
      std::cin.read(reinterpret_cast<char*>(pixels.data()) + y * (row + gap), row);
    }
    frame.pixels = pixels.data() + (frame.height - 1) * (row + gap);
    frame.stride = -(row + gap);
    if (!uce_edge::unusable(frame, to, how).empty()) return 1;
    type == "uint8" ? answer<std::uint8_t>(frame, to, how) : answer<float>(frame, to, how);
  }
}
