// Damaged metadata for the JSON parser of the C++ port: whatever it is given, it parses or says what is wrong.
//
// With clang:  clang++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -DUCE_EDGE_LIBFUZZER -I examples/cpp
//              tests/fuzz/json_fuzz.cpp -o json_fuzz && ./json_fuzz tests/golden
// Otherwise:   g++ -std=c++17 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -I examples/cpp
//              tests/fuzz/json_fuzz.cpp -o json_fuzz && ./json_fuzz 0 100000 tests/golden/*.json

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

#include "uce_edge_json.hpp"

using uce_edge::detail::Json;

namespace {

// What the port does with a document: it asks for keys, kinds and whole numbers, at every depth.
void use(const Json& value) {
  for (const std::string& key : value.keys) {
    value.has(key);
    value.whole(key, 1, 4096);
  }
  for (const Json& item : value.items) use(item);
}

bool parses(const std::string& text) {
  std::string damage;
  const Json document = uce_edge::detail::JsonParser(text, damage).document();
  const bool sound = damage.empty();
  use(document);
  return sound;
}

}  // namespace

#ifdef UCE_EDGE_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  parses(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}

#else

namespace {

std::string damaged(std::string text, std::mt19937_64& random) {
  const auto below = [&](std::size_t end) { return end == 0 ? 0 : static_cast<std::size_t>(random() % end); };
  static const std::string pieces[] = {"\"",     "{",    "[",      "]",    "}",  ",",    ":",     "\\u", "\\ud800\\udc00",
                                       "1e999",  "-",    "1e-400", "null", "tr", "\\",   "[[[[[", "0x1", "\\uDFFF",
                                       "\xff\xfe", "-1e5", "false",  "+.",   "/",  "9999999999999999999999"};
  for (std::size_t rounds = 1 + below(4); rounds > 0; --rounds) {
    const std::size_t place = below(text.size() + 1), length = 1 + below(32);
    switch (below(6)) {
      case 0:
        text.resize(place);
        break;
      case 1:
        text.erase(place, length);
        break;
      case 2:
        text.insert(place, text.substr(place, length));
        break;
      case 3:
        text.insert(place, pieces[below(std::size(pieces))]);
        break;
      case 4:
        text.insert(place, std::string(1 + below(300), "[{\""[below(3)]));
        break;
      default:
        if (place < text.size()) text[place] = static_cast<char>(random());
    }
  }
  return text;
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) return std::fputs("usage: json_fuzz FIRST COUNT FILE...\n", stderr), 2;
  std::vector<std::string> corpus;
  for (int i = 3; i < count; ++i) {
    std::ifstream file(words[i], std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (!parses(corpus.back())) return std::fprintf(stderr, "%s is sound, and was refused\n", words[i]), 1;
  }
  const unsigned long long first = std::strtoull(words[1], nullptr, 10), all = std::strtoull(words[2], nullptr, 10);
  unsigned long long read = 0;
  for (unsigned long long number = first; number < first + all; ++number) {
    std::mt19937_64 random(number);
    read += parses(damaged(corpus[random() % corpus.size()], random));
  }
  std::printf("{\"read\": %llu, \"refused\": %llu}\n", read, all - read);
}

#endif
