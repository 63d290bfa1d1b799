// Classifies one raw image with a uce-edge model file and prints the answer as JSON.

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "uce_edge.hpp"

namespace {

using Options = std::map<std::string, std::string>;

constexpr const char* usage =
    "Usage: uce_edge_predict MODEL.onnx IMAGE.raw [--frame WIDTHxHEIGHT] [--samples N] [--seed S] [--reject "
    "THRESHOLD|auto], or "
    "uce_edge_predict MODEL.onnx --self-test";

constexpr const char* help =
    "\n\nClassifies one raw image and prints the answer as JSON.\n\n"
    "  IMAGE.raw     height x width x channels bytes, rows from the top, not normalised\n"
    "  --frame WxH   the image is a frame of this size, gray or RGB: resize it as the file asks\n"
    "  --samples N   the number of passes, 1 to 4096; by default what the file says\n"
    "  --seed S      which passes: S owns 4096*S to 4096*S+4095; by default 0\n"
    "  --reject T    reject an uncertainty above T, or with auto apply the rule of the file\n"
    "  --self-test   answer the probe images in the file, and compare with the answers it was published with\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage.\n";

[[noreturn]] void refuse(const std::string& name, const std::string& rule, const std::string& value) {
  throw uce_edge::UsageError("Expected `" + name + "` to be " + rule + ", but got " + value + ".");
}

// The whole of a text as a number, with a decimal point whatever the device's language.
template <typename Number>
std::optional<Number> parse(const std::string& text) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  Number value{};
  if (!(stream >> std::noskipws >> value) || stream.peek() != EOF) return {};
  return value;
}

std::optional<std::int64_t> whole(const Options& options, const std::string& name, std::int64_t high) {
  const auto given = options.find(name);
  if (given == options.end()) return {};
  const auto value = parse<std::int64_t>(given->second);
  const std::int64_t low = name == "samples" ? 1 : 0;
  if (!value || *value < low || *value > high) {
    refuse(name, "between " + std::to_string(low) + " and " + std::to_string(high), given->second);
  }
  return value;
}

// The pixels that the model takes, of a frame of WIDTHxHEIGHT with as many channels as its bytes make up.
std::vector<std::uint8_t> prepared(const uce_edge::Model& model, const std::string& size,
                                   const std::vector<std::uint8_t>& bytes) {
  const std::size_t cross = size.find('x');
  const auto width = parse<std::int32_t>(size.substr(0, cross));
  const auto height = cross == std::string::npos ? std::nullopt : parse<std::int32_t>(size.substr(cross + 1));
  if (!width || !height || *width < 1 || *height < 1) refuse("frame", "a width and a height such as 640x480", size);
  const std::int64_t area = std::int64_t(*width) * *height, count = std::int64_t(bytes.size());
  if (count != area && count != 3 * area) {
    refuse("image", std::to_string(area) + " bytes (gray) or " + std::to_string(3 * area) + " bytes (RGB)",
           std::to_string(count));
  }
  return model.prepare({bytes.data(), *width, *height, count / area, 0});
}

std::string quoted(const std::string& text) {
  std::ostringstream out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out << '\\' << c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out << "\\u" << std::hex << std::setw(4) << std::setfill('0') << int(c);
    } else {
      out << c;
    }
  }
  return '"' + out.str() + '"';
}

// Nine digits give every float32 back exactly; what is absent or no finite number is null.
std::string number(std::optional<float> value) {
  if (!value || !std::isfinite(*value)) return "null";
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::setprecision(9) << *value;
  return out.str();
}

// The names of the prediction set, or null.
std::string labels(const uce_edge::Metadata& metadata, const uce_edge::Prediction& answer) {
  if (!answer.set) return "null";
  std::string names;
  for (const std::int32_t id : *answer.set) {
    names += (names.empty() ? "" : ", ") + quoted(metadata.classes[std::size_t(id)]);
  }
  return "[" + names + "]";
}

// A map with its size, or null.
std::string map(const std::optional<uce_edge::Map>& found) {
  if (!found) return "null";
  std::string values;
  for (const float value : found->values) values += (values.empty() ? "" : ", ") + number(value);
  return "{\"height\": " + std::to_string(found->height) + ", \"width\": " + std::to_string(found->width) +
         ", \"values\": [" + values + "]}";
}

void self_test(const std::string& path) {
  const auto found = uce_edge::Model(path).self_test();
  if (!found) throw uce_edge::Error(path + " has no probe images: it was published before there were any.");
  std::ostringstream told;
  told.imbue(std::locale::classic());
  told << found->difference;
  if (!found->passed()) {
    throw uce_edge::Error(path + " answers its own probe images otherwise than when it was published: by " +
                          told.str() + ".");
  }
  std::cout << "{\"images\": " << found->images << ", \"difference\": " << told.str() << "}\n";
}

void run(const std::vector<std::string>& arguments) {
  for (const std::string& word : arguments) {
    if (word == "--help" || word == "-h") {
      std::cout << usage << help;
      return;
    }
  }
  if (arguments.size() == 2 && arguments[1] == "--self-test") return self_test(arguments[0]);
  std::vector<std::string> files;
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--frame" || word == "--samples" || word == "--seed" || word == "--reject") {
      if (i + 1 == arguments.size()) throw uce_edge::UsageError(usage);
      options[word.substr(2)] = arguments[++i];
    } else {
      files.push_back(word);
    }
  }
  if (files.size() != 2) throw uce_edge::UsageError(usage);
  const auto samples = whole(options, "samples", uce_edge::max_samples);
  const auto seed = whole(options, "seed", uce_edge::max_seed).value_or(0);
  const std::string reject = options.count("reject") ? options.at("reject") : "";
  const auto given = parse<double>(reject);
  if (options.count("reject") && reject != "auto" && !(given && *given >= 0 && *given <= 1)) {
    refuse("reject", "between 0 and 1, or auto", reject);
  }

  uce_edge::Model model(files[0]);
  const auto& metadata = model.metadata();
  const auto seeds = model.seeds(samples, seed);
  const auto passes = static_cast<std::int64_t>(seeds.size());
  if (reject == "auto") {
    if (!metadata.rule) {
      throw uce_edge::UsageError(files[0] + " has no stored reject rule: give a threshold, such as --reject 0.3.");
    }
    const auto& promise = metadata.promise;
    if (promise && (promise->samples != passes || promise->seed != seed)) {
      std::cerr << "warning: the promise about the error holds for other passes than these.\n";
    }
  }
  const auto& sets = metadata.sets;
  if (sets && (sets->samples != passes || sets->seed != seed)) {
    std::cerr << "warning: the promise of the prediction sets holds for other passes than these.\n";
  }
  if (metadata.calibrated_at.value_or(passes) != passes) {
    std::cerr << "warning: this model was calibrated at " << *metadata.calibrated_at << " samples and runs with "
              << passes << ": its probabilities are a little off.\n";
  }
  std::ifstream file(files[1], std::ios::binary);
  if (!file) throw uce_edge::Error("There is no image file " + files[1] + ".");
  std::vector<std::uint8_t> image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (options.count("frame")) image = prepared(model, options.at("frame"), image);

  const auto answer = model.predict(image, seeds);
  std::string probabilities;
  for (const float p : answer.probabilities) probabilities += (probabilities.empty() ? "" : ", ") + number(p);
  const bool decides = given || reject == "auto";
  const int decision = given ? int(answer.is_uncertain(float(*given))) : decides ? int(answer.decision) : 0;
  std::cout << "{\"label\": " << quoted(answer.label) << ", \"class_id\": " << answer.class_id
            << ", \"probabilities\": [" << probabilities << "], \"uncertainty\": " << number(answer.uncertainty)
            << ", \"model_uncertainty\": " << number(answer.model_uncertainty)
            << ", \"standard_error\": " << number(answer.standard_error)
            << ", \"error_probability\": " << number(answer.error_probability)
            << ", \"novelty\": " << number(answer.novelty) << ", \"novelty_score\": " << number(answer.novelty_score)
            << ", \"decision\": " << (!decides ? "null" : decision == 0 ? "\"accept\"" : "\"reject\"")
            << ", \"reason\": " << (decision == 0 ? "null" : quoted(uce_edge::reasons[decision]))
            << ", \"set\": " << labels(metadata, answer) << ", \"heatmap\": " << map(answer.heatmap)
            << ", \"heatmap_spread\": " << map(answer.heatmap_spread) << ", \"samples\": " << passes
            << ", \"seed\": " << seed << "}\n";
}

}  // namespace

int main(int count, char** values) {
  // Before the environment of ONNX Runtime is made, which would write a device id to disk and report; 0 keeps what is set.
  setenv("ORT_DISABLE_TELEMETRY", "1", 0);
  try {
    run({values + 1, values + count});
  } catch (const uce_edge::UsageError& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
