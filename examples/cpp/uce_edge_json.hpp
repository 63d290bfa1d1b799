// As much of a JSON parser as the metadata of a uce-edge model needs, so that no library is.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace uce_edge::detail {

// What is wrong with a JSON text, to follow its name.
struct Damage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A parsed value.
struct Json {
  enum class Kind { null, boolean, number, string, array, object };
  Kind kind = Kind::null;
  double number = 0;  // of a boolean, 1 when it is true
  std::string text;
  std::vector<std::string> keys;  // of an object, beside its items
  std::vector<Json> items;

  const Json* find(const std::string& key) const {
    const auto place = std::find(keys.begin(), keys.end(), key);
    return place == keys.end() ? nullptr : &items[static_cast<std::size_t>(place - keys.begin())];
  }

  // Whether there is a member under this key that is not null.
  bool has(const std::string& key) const {
    const Json* value = find(key);
    return value != nullptr && value->kind != Kind::null;
  }

  // The member under this key, which must be of this kind.
  const Json& at(const std::string& key, Kind wanted) const {
    const Json* value = find(key);
    if (value == nullptr) throw Damage("it lacks the key " + key);
    if (value->kind != wanted) throw Damage("its key " + key + " has the wrong type");
    return *value;
  }

  std::int64_t whole(const std::string& key, std::int64_t low, std::int64_t high) const {
    const double value = at(key, Kind::number).number;
    if (!(value >= double(low) && value <= double(high)) || value != std::floor(value)) {
      throw Damage("its key " + key + " is out of range");
    }
    return static_cast<std::int64_t>(value);
  }
};

class JsonParser {
 public:
  explicit JsonParser(const std::string& source) : source_(source) {}

  Json document() {
    Json value = parse(0);
    if (skip_space() != '\0' || at_ != source_.size()) throw Damage("it goes on after its end");
    return value;
  }

 private:
  char skip_space() {
    while (at_ < source_.size() && std::string(" \t\r\n").find(source_[at_]) != std::string::npos) ++at_;
    return at_ < source_.size() ? source_[at_] : '\0';
  }

  char next() {
    if (at_ >= source_.size()) throw Damage("it ends too early");
    return source_[at_++];
  }

  void expect(char wanted) {
    skip_space();
    if (next() != wanted) throw Damage(std::string("a ") + wanted + " is missing");
  }

  Json parse(int depth) {
    if (depth > 64) throw Damage("it is nested too deeply");  // a hostile file must not exhaust the stack
    Json value;
    const char first = skip_space();
    if (first == '{' || first == '[') {
      const bool object = first == '{';
      const char last = object ? '}' : ']';
      value.kind = object ? Json::Kind::object : Json::Kind::array;
      ++at_;
      if (skip_space() == last) return ++at_, value;
      while (true) {
        if (object) {
          expect('"');
          value.keys.push_back(string());
          expect(':');
        }
        value.items.push_back(parse(depth + 1));
        if (skip_space() == last) return ++at_, value;
        expect(',');
      }
    }
    if (first == '"') {
      ++at_;
      value.kind = Json::Kind::string;
      value.text = string();
    } else if (const bool yes = literal("true"); yes || literal("false")) {
      value.kind = Json::Kind::boolean;
      value.number = yes ? 1 : 0;
    } else if (!literal("null")) {
      value.kind = Json::Kind::number;
      value.number = number();
    }
    return value;
  }

  bool literal(const std::string& word) {
    if (source_.compare(at_, word.size(), word) != 0) return false;
    at_ += word.size();
    return true;
  }

  double number() {
    const std::size_t end = std::min(source_.find_first_not_of("+-.0123456789eE", at_), source_.size());
    std::istringstream stream(source_.substr(at_, end - at_));
    stream.imbue(std::locale::classic());  // a decimal point whatever the device's language
    double value = 0;
    if (!(stream >> value) || stream.peek() != std::istringstream::traits_type::eof()) {
      throw Damage("a number in it cannot be read");
    }
    at_ = end;
    return value;
  }

  // The rest of a string whose opening quote was read, as UTF-8.
  std::string string() {
    std::string text;
    for (char c = next(); c != '"'; c = next()) {
      if (c != '\\') {
        text += c;
        continue;
      }
      c = next();
      const std::string escapes = "\"\\/bfnrt";
      const std::size_t which = escapes.find(c);
      if (which != std::string::npos) {
        text += "\"\\/\b\f\n\r\t"[which];
      } else if (c == 'u') {
        append(text, code_point());
      } else {
        throw Damage("an escape in it is unknown");
      }
    }
    return text;
  }

  std::uint32_t code_point() {
    const std::uint32_t high = hexadecimal();
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high > 0xDBFF || next() != '\\' || next() != 'u') throw Damage("half a character is missing");
    const std::uint32_t low = hexadecimal();
    if (low < 0xDC00 || low > 0xDFFF) throw Damage("half a character is missing");
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  std::uint32_t hexadecimal() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      const std::size_t digit = std::string("0123456789abcdef0123456789ABCDEF").find(next());
      if (digit == std::string::npos) throw Damage("an escape in it is unknown");
      value = value * 16 + static_cast<std::uint32_t>(digit % 16);
    }
    return value;
  }

  static void append(std::string& text, std::uint32_t code) {
    if (code < 0x80) {
      text += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    const std::uint32_t lead[] = {0, 0xC0, 0xE0, 0xF0};
    text += static_cast<char>(lead[more] | code >> 6 * more);
    for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80 | (code >> 6 * i & 0x3F));
  }

  const std::string& source_;
  std::size_t at_ = 0;
};

}  // namespace uce_edge::detail
