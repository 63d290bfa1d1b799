// As much of a JSON parser as the metadata of a uce-edge model needs, so that no library is.
//
// Nothing here throws: the first thing that is wrong is written down, and what is asked for after it is empty.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <locale>
#include <sstream>
#include <string>
#include <vector>

namespace uce_edge::detail {

// A parsed value.
struct Json {
  enum class Kind { null, boolean, number, string, array, object };
  std::string* damage = nullptr;  // where it is written down what is wrong with the text, to follow its name
  Kind kind = Kind::null;
  double number = 0;  // of a boolean, 1 when it is true
  std::string text;
  std::vector<std::string> keys;  // of an object, beside its items
  std::vector<Json> items;

  // Write down what is wrong, unless something was before.
  void damaged(const std::string& what) const {
    if (damage != nullptr && damage->empty()) *damage = what;
  }

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
    static const Json nothing{};
    const Json* value = find(key);
    if (value != nullptr && value->kind == wanted) return *value;
    damaged(value == nullptr ? "it lacks the key " + key : "its key " + key + " has the wrong type");
    return nothing;
  }

  std::int64_t whole(const std::string& key, std::int64_t low, std::int64_t high) const {
    const double value = at(key, Kind::number).number;
    if (!(value >= double(low) && value <= double(high)) || value != std::floor(value)) {
      damaged("its key " + key + " is out of range");
      return low;
    }
    return static_cast<std::int64_t>(value);
  }
};

class JsonParser {
 public:
  // `damage` must outlive the values; it stays empty when nothing is wrong.
  JsonParser(const std::string& source, std::string& damage) : source_(source), damage_(damage) {}

  Json document() {
    Json value = parse(0);
    if (skip_space() != '\0' || at_ != source_.size()) fail("it goes on after its end");
    return value;
  }

 private:
  // Writes down what is wrong and goes to the end, where every loop stops.
  void fail(const std::string& what) {
    if (damage_.empty()) damage_ = what;
    at_ = source_.size();
  }

  bool failed() const { return !damage_.empty(); }

  char skip_space() {
    while (at_ < source_.size() && std::string(" \t\r\n").find(source_[at_]) != std::string::npos) ++at_;
    return at_ < source_.size() ? source_[at_] : '\0';
  }

  char next() {
    if (at_ < source_.size()) return source_[at_++];
    fail("it ends too early");
    return '\0';
  }

  void expect(char wanted) {
    skip_space();
    if (next() != wanted) fail(std::string("a ") + wanted + " is missing");
  }

  Json parse(int depth) {
    Json value{};
    value.damage = &damage_;
    if (depth > 64) fail("it is nested too deeply");  // a hostile file must not exhaust the stack
    if (failed()) return value;
    const char first = skip_space();
    if (first == '{' || first == '[') {
      const bool object = first == '{';
      const char last = object ? '}' : ']';
      value.kind = object ? Json::Kind::object : Json::Kind::array;
      ++at_;
      if (skip_space() == last) return ++at_, value;
      while (!failed()) {
        if (object) {
          expect('"');
          value.keys.push_back(string());
          expect(':');
        }
        value.items.push_back(parse(depth + 1));
        if (skip_space() == last) return ++at_, value;
        expect(',');
      }
    } else if (first == '"') {
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
      fail("a number in it cannot be read");
      return 0;
    }
    at_ = end;
    return value;
  }

  // The rest of a string whose opening quote was read, as UTF-8.
  std::string string() {
    std::string text;
    for (char c = next(); c != '"' && !failed(); c = next()) {
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
        fail("an escape in it is unknown");
      }
    }
    return text;
  }

  std::uint32_t code_point() {
    const std::uint32_t high = hexadecimal();
    if (high < 0xD800 || high > 0xDFFF) return high;
    const bool follows = high <= 0xDBFF && next() == '\\' && next() == 'u';
    const std::uint32_t low = follows ? hexadecimal() : 0;
    if (low < 0xDC00 || low > 0xDFFF) {
      fail("half a character is missing");
      return 0;
    }
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  std::uint32_t hexadecimal() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      const std::size_t digit = std::string("0123456789abcdef0123456789ABCDEF").find(next());
      if (digit == std::string::npos) fail("an escape in it is unknown");
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
  std::string& damage_;
  std::size_t at_ = 0;
};

}  // namespace uce_edge::detail
