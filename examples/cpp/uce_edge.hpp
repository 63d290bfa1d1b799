// Runs a uce-edge model file (docs/contract.md, version 1) with ONNX Runtime's C++ API and nothing else.
//
//     uce_edge::Model model("digits.onnx");
//     auto answer = model.predict(pixels, model.seeds());
//     if (!answer.rejected(model.metadata().limits().value())) act_on(answer.label);

#pragma once

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <locale>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "uce_edge_json.hpp"
#include "uce_edge_range.hpp"

namespace uce_edge {

constexpr int contract_version = 1;
constexpr std::int64_t max_samples = 4096;
constexpr std::int64_t max_seed = 4095;
inline constexpr const char* inferences[] = {"mc", "moments", "deterministic"};
// What every file is asked for. A file may have more outputs, and its metadata more keys: they are ignored.
inline constexpr const char* outputs[] = {"probabilities",     "class_id",       "uncertainty",
                                          "model_uncertainty", "standard_error", "error_probability"};
// What a file is asked for when its metadata lists it.
inline constexpr const char* optional_outputs[] = {"novelty", "novelty_score"};
// What a stored rule may compare with its threshold.
inline constexpr const char* scores[] = {"uncertainty"};

// What a user is told, in one sentence.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The request itself is wrong.
struct UsageError : Error {
  using Error::Error;
};

// A stored threshold, and the passes that its promise about the error holds for.
struct Threshold {
  float value = 0;
  std::int64_t samples = 0;
  std::int64_t seed = 0;
};

// What turns an image away in a file that can tell what is foreign.
struct Rule {
  float cutoff = 0;                    // of the novelty
  std::optional<Threshold> uncertain;  // without one, nothing is turned away for its uncertainty
};

// What an answer is compared with; what is absent compares nothing.
struct Limits {
  std::optional<float> threshold;  // the uncertainty may be at most this
  std::optional<float> cutoff;     // the novelty must be above this
};

// A synthetic image, and what the file answered to it when it was published.
struct Probe {
  std::string pattern;
  std::int64_t samples = 0;
  std::vector<std::pair<std::string, std::vector<double>>> outputs;  // by name
};

// How far the answers to the probe images are from those that were published.
struct SelfTest {
  std::size_t images = 0;
  double difference = 0;  // the largest one; of the novelty score, as a share of it
  double allowed = 0;     // what rounding explains
  bool passed() const { return difference <= allowed; }
};

// What the file says of itself, as far as running it needs.
struct Metadata {
  std::vector<std::string> classes;
  std::int64_t height = 0, width = 0, channels = 0;
  bool float32 = false;  // pixels are float32 rather than uint8
  std::optional<Range> range;  // of gray values of more than 8 bits, for `to_8_bits`
  bool deterministic = false;
  bool takes_seeds = true;  // a deterministic model does not, nor one whose passes are baked in
  std::int64_t samples = 0;
  std::optional<std::int64_t> calibrated_at;  // the number of passes that the calibration was fitted at
  std::vector<const char*> optional;  // those of `optional_outputs` that the file has
  std::optional<Threshold> reject;
  std::optional<Rule> rule;  // what to apply instead of `reject`
  std::vector<Probe> probes;
  bool exact = true;  // the network computes in float32

  // What the file itself rejects by: its rule, or else its threshold, if it has one.
  std::optional<Limits> limits() const {
    const auto& stored = promised();
    const auto threshold = stored ? std::optional<float>(stored->value) : std::nullopt;
    if (rule) return Limits{threshold, rule->cutoff};
    return threshold ? std::optional<Limits>(Limits{threshold, {}}) : std::nullopt;
  }

  // The threshold of these limits, with the passes that its promise holds for.
  const std::optional<Threshold>& promised() const { return rule ? rule->uncertain : reject; }

  std::size_t image_bytes() const { return std::size_t(height * width * channels) * (float32 ? 4 : 1); }

  static Metadata parse(const std::string& json, const std::string& source) {
    try {
      return from(detail::JsonParser(json).document(), source);
    } catch (const detail::Damage& error) {
      throw Error(source + " has damaged metadata: " + error.what() + ".");
    }
  }

 private:
  static Metadata from(const detail::Json& document, const std::string& source) {
    using Kind = detail::Json::Kind;
    const detail::Json* version = document.find("contract");
    if (version == nullptr || version->kind != Kind::number || version->number != contract_version) {
      std::ostringstream shown;
      if (version != nullptr && version->kind == Kind::number) shown << version->number;
      throw Error(source + " follows model contract " + (shown.str().empty() ? "null" : shown.str()) +
                  ", and this program reads contract " + std::to_string(contract_version) + ".");
    }
    Metadata result;
    for (const detail::Json& name : document.at("classes", Kind::array).items) {
      if (name.kind != Kind::string) throw detail::Damage("a class has no name");
      result.classes.push_back(name.text);
    }
    const detail::Json& image = document.at("image", Kind::object);
    result.height = image.whole("height", 1, 1 << 16);
    result.width = image.whole("width", 1, 1 << 16);
    result.channels = image.whole("channels", 1, 1 << 10);
    const std::string dtype = image.at("dtype", Kind::string).text;
    if (dtype != "uint8" && dtype != "float32") throw detail::Damage("its pixels are " + dtype);
    result.float32 = dtype == "float32";
    if (image.has("range")) {
      const detail::Json& stored = image.at("range", Kind::object);
      result.range = Range{stored.at("low", Kind::number).number, stored.at("high", Kind::number).number};
      if (!(result.range->low < result.range->high)) throw detail::Damage("its range ends before it starts");
    }
    const std::string inference = document.at("inference", Kind::string).text;
    if (std::find(std::begin(inferences), std::end(inferences), inference) == std::end(inferences)) {
      throw detail::Damage("its inference is " + inference);
    }
    result.deterministic = inference == "deterministic";
    const detail::Json* baked = document.find("baked");
    result.takes_seeds = !result.deterministic && (baked == nullptr || baked->number == 0);
    result.samples = document.whole("samples", 1, max_samples);
    if (const detail::Json* map = document.find("calibration"); map != nullptr) {
      const detail::Json* fitted = map->find("samples");
      const bool known = fitted != nullptr && fitted->kind == Kind::number;
      if (known) result.calibrated_at = map->whole("samples", 1, max_samples);
    }
    if (document.has("outputs")) {
      for (const detail::Json& listed : document.at("outputs", Kind::array).items) {
        for (const char* name : optional_outputs) {
          if (listed.text == name) result.optional.push_back(name);
        }
      }
    }
    if (document.has("reject")) result.reject = threshold(document.at("reject", Kind::object));
    if (document.has("rule")) {
      if (!result.has_output("novelty")) throw detail::Damage("its rule needs the output novelty");
      result.rule = stored_rule(document.at("rule", Kind::object));
    }
    if (document.has("precision")) result.exact = document.at("precision", Kind::string).text == "fp32";
    if (document.has("probe")) {
      for (const detail::Json& stored : document.at("probe", Kind::array).items) result.probes.push_back(probe(stored));
    }
    return result;
  }

  static Probe probe(const detail::Json& stored) {
    using Kind = detail::Json::Kind;
    if (stored.kind != Kind::object) throw detail::Damage("its key probe has the wrong type");
    Probe result{stored.at("pattern", Kind::string).text, stored.whole("samples", 1, max_samples), {}};
    const detail::Json& outputs = stored.at("outputs", Kind::object);
    for (const std::string& name : outputs.keys) {
      std::vector<double> numbers;
      for (const detail::Json& value : outputs.at(name, Kind::array).items) {
        if (value.kind != Kind::number) throw detail::Damage("a probe has an answer that is no number");
        numbers.push_back(value.number);
      }
      result.outputs.emplace_back(name, std::move(numbers));
    }
    return result;
  }

  bool has_output(const std::string& name) const {
    return std::find(optional.begin(), optional.end(), name) != optional.end();
  }

  static Threshold threshold(const detail::Json& stored) {
    const double value = stored.at("threshold", detail::Json::Kind::number).number;
    if (!(value >= 0 && value <= 1)) throw detail::Damage("its threshold is not between 0 and 1");
    const std::int64_t samples = stored.whole("samples", 1, max_samples);
    return Threshold{float(value), samples, stored.whole("seed", 0, max_seed)};
  }

  static Rule stored_rule(const detail::Json& stored) {
    using Kind = detail::Json::Kind;
    const std::string score = stored.has("score") ? stored.at("score", Kind::string).text : scores[0];
    if (std::find(std::begin(scores), std::end(scores), score) == std::end(scores)) {
      throw detail::Damage("its rule compares " + score);
    }
    const double cutoff = stored.at("foreign", Kind::object).at("cutoff", Kind::number).number;
    if (!(cutoff > 0 && cutoff < 1)) throw detail::Damage("its cutoff is not strictly between 0 and 1");
    Rule rule{float(cutoff), {}};
    if (stored.has("uncertain")) rule.uncertain = threshold(stored.at("uncertain", Kind::object));
    return rule;
  }
};

// Why an answer is rejected.
enum class Reason { none, uncertain, foreign, both };
inline constexpr const char* reasons[] = {"", "uncertain", "foreign", "both"};  // by `Reason`

// One image's answer; the contract says what each number means.
struct Prediction {
  std::string label;
  std::int32_t class_id = 0;
  std::vector<float> probabilities;
  float uncertainty = 0, model_uncertainty = 0, standard_error = 0, error_probability = 0;
  std::optional<float> novelty, novelty_score;  // of a file that can tell what is foreign

  // Why the answer may not be used. Comparisons are in float32; an uncertainty that is not a number is never accepted,
  // and a novelty that is none, or absent, is foreign.
  Reason reason(const Limits& limits) const {
    const bool uncertain = std::isnan(uncertainty) || (limits.threshold && !(uncertainty <= *limits.threshold));
    const bool foreign = limits.cutoff && !(novelty.value_or(0) > *limits.cutoff);
    return Reason((uncertain ? int(Reason::uncertain) : 0) + (foreign ? int(Reason::foreign) : 0));
  }

  // The numbers of an output that a probe may have; none for another.
  std::vector<float> values(const std::string& output) const {
    if (output == "probabilities") return probabilities;
    if (output == "uncertainty") return {uncertainty};
    if (output == "model_uncertainty") return {model_uncertainty};
    if (output == "standard_error") return {standard_error};
    if (output == "error_probability") return {error_probability};
    if (output == "novelty_score" && novelty_score) return {*novelty_score};
    return {};
  }

  bool rejected(const Limits& limits) const { return reason(limits) != Reason::none; }
  bool rejected(float threshold) const { return rejected(Limits{threshold, {}}); }

  // What the decision rests on, in words that follow "reject:" or "accept:".
  std::string why(const Limits& limits) const {
    const Reason reason = this->reason(limits);
    if (reason == Reason::foreign) return unlike;
    const std::string measured = compared(limits.threshold, reason == Reason::none);
    if (reason == Reason::uncertain) return measured;
    if (reason == Reason::both) return std::string(unlike) + ", and " + measured;
    if (!limits.cutoff) return measured;
    return limits.threshold ? std::string(like) + ", and " + measured : like;
  }

 private:
  static constexpr const char* like = "like what it was calibrated on";
  static constexpr const char* unlike = "unlike anything it was calibrated on";

  std::string compared(std::optional<float> threshold, bool at_most) const {
    if (std::isnan(uncertainty)) return "its uncertainty is not a number";
    std::ostringstream out;
    out.imbue(std::locale::classic());
    out << "its uncertainty is " << (at_most ? "at most " : "above ") << std::setprecision(4) << threshold.value_or(0);
    return out.str();
  }
};

// The seeds that `--samples N --seed S` stands for: the first N of the 4096 passes that S owns.
inline std::vector<std::int32_t> pass_seeds(std::int64_t samples, std::int64_t seed) {
  const auto check = [](const char* name, std::int64_t low, std::int64_t high, std::int64_t value) {
    if (value >= low && value <= high) return;
    throw UsageError("Expected `" + std::string(name) + "` to be between " + std::to_string(low) + " and " +
                     std::to_string(high) + ", but got " + std::to_string(value) + ".");
  };
  check("samples", 1, max_samples, samples);
  check("seed", 0, max_seed, seed);
  std::vector<std::int32_t> seeds(static_cast<std::size_t>(samples));
  std::iota(seeds.begin(), seeds.end(), static_cast<std::int32_t>(seed * max_samples));
  return seeds;
}

// The pixels of a probe image, as bytes that `Model::predict` takes.
inline std::vector<std::uint8_t> probe_image(const std::string& pattern, const Metadata& m) {
  const bool weyl = pattern == "weyl";
  if (!weyl && pattern != "ramp") throw Error("A probe image has the pattern " + pattern + ", which is not known here.");
  const std::int64_t longest = std::max<std::int64_t>(m.height + m.width + m.channels - 3, 1);
  std::vector<std::uint8_t> pixels;
  pixels.reserve(m.image_bytes());
  std::uint32_t number = 0;
  for (std::int64_t y = 0; y < m.height; ++y) {
    for (std::int64_t x = 0; x < m.width; ++x) {
      for (std::int64_t c = 0; c < m.channels; ++c, ++number) {
        const auto value = std::uint8_t(weyl ? (number * 2654435761u) >> 24 : 255 * (y + x + c) / longest);
        const float real = value;
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(&real);
        if (m.float32) {
          pixels.insert(pixels.end(), bytes, bytes + sizeof real);
        } else {
          pixels.push_back(value);
        }
      }
    }
  }
  return pixels;
}

// A model file, ready to predict.
class Model {
 public:
  // `threads` of ONNX Runtime; 0 for all cores.
  explicit Model(const std::string& path, int threads = 0) : path_(path) {
    if (!std::ifstream(path)) throw Error("There is no model file " + path + ".");
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(threads);
    try {
      session_ = Ort::Session(environment_, path.c_str(), options);
    } catch (const Ort::Exception&) {
      throw Error(path + " is not an ONNX file that can be loaded: it is damaged, incomplete or something else.");
    }
    Ort::AllocatorWithDefaultOptions allocator;
    const auto json = session_.GetModelMetadata().LookupCustomMetadataMapAllocated("uce_edge", allocator);
    if (json == nullptr) {
      throw Error(path + " is an ONNX file, but not a uce-edge model: it has no metadata under uce_edge.");
    }
    metadata_ = Metadata::parse(json.get(), path);
    check_signature(allocator);
  }

  const Metadata& metadata() const { return metadata_; }

  // The passes of a request; without one, the number stored in the file.
  std::vector<std::int32_t> seeds(std::optional<std::int64_t> samples = {}, std::int64_t seed = 0) const {
    const char* kind = metadata_.deterministic ? "a deterministic model" : "a model with its passes baked in";
    if (!metadata_.takes_seeds && samples.value_or(metadata_.samples) != metadata_.samples) {
      throw UsageError("Expected `samples` to be left out for " + std::string(kind) + ", but got " +
                       std::to_string(*samples) + ".");
    }
    if (!metadata_.takes_seeds && !metadata_.deterministic && seed != 0) {
      throw UsageError("Expected `seed` to be left out for " + std::string(kind) + ", but got " +
                       std::to_string(seed) + ".");
    }
    return pass_seeds(samples.value_or(metadata_.samples), seed);
  }

  // Classifies one image: raw pixels, rows from the top, channels last, not normalised.
  Prediction predict(const std::vector<std::uint8_t>& image, const std::vector<std::int32_t>& seeds) {
    const Metadata& m = metadata_;
    if (image.size() != m.image_bytes()) {
      throw Error("Expected `image` to be " + std::to_string(m.image_bytes()) + " bytes (" + std::to_string(m.height) +
                  " x " + std::to_string(m.width) + " x " + std::to_string(m.channels) + ", " +
                  (m.float32 ? "float32" : "uint8") + "), but got " + std::to_string(image.size()) + ".");
    }
    if (seeds.empty() || seeds.size() > std::size_t(max_samples)) {
      throw UsageError("Expected `seeds` to be 1 to " + std::to_string(max_samples) + " numbers, but got " +
                       std::to_string(seeds.size()) + ".");
    }
    // ONNX Runtime takes pointers that are not const, and does not write through them.
    auto* pixels = const_cast<std::uint8_t*>(image.data());
    auto* passes = const_cast<std::int32_t*>(seeds.data());
    const std::int64_t shape[] = {1, m.height, m.width, m.channels};
    const std::int64_t count[] = {static_cast<std::int64_t>(seeds.size())};
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    Ort::Value feed[] = {Ort::Value::CreateTensor(memory, pixels, image.size(), shape, 4, pixel_type()),
                         Ort::Value::CreateTensor<std::int32_t>(memory, passes, seeds.size(), count, 1)};
    std::vector<const char*> asked(std::begin(outputs), std::end(outputs));
    asked.insert(asked.end(), m.optional.begin(), m.optional.end());
    std::vector<Ort::Value> values;
    try {
      const std::size_t fed = m.takes_seeds ? 2 : 1;
      values = session_.Run(Ort::RunOptions{nullptr}, inputs, feed, fed, asked.data(), asked.size());
    } catch (const Ort::Exception& error) {
      throw Error(path_ + " could not be run: " + error.what());
    }
    Prediction result;
    const auto named = [&](const std::string& name) -> const Ort::Value& {
      return values[std::size_t(std::find(asked.begin(), asked.end(), name) - asked.begin())];
    };
    const float* probabilities = data<float>(named("probabilities"), m.classes.size());
    result.probabilities.assign(probabilities, probabilities + m.classes.size());
    result.class_id = *data<std::int32_t>(named("class_id"), 1);
    result.uncertainty = *data<float>(named("uncertainty"), 1);
    result.model_uncertainty = *data<float>(named("model_uncertainty"), 1);
    result.standard_error = *data<float>(named("standard_error"), 1);
    result.error_probability = *data<float>(named("error_probability"), 1);
    for (const std::string name : m.optional) {
      (name == "novelty" ? result.novelty : result.novelty_score) = *data<float>(named(name), 1);
    }
    if (result.class_id < 0 || std::size_t(result.class_id) >= m.classes.size()) throw Error(broken());
    result.label = m.classes[std::size_t(result.class_id)];
    return result;
  }

  // Answers the file's own probe images here, and compares with what it answered when it was published: a broken driver
  // or a wrong kernel answers otherwise. Nothing for a file without probe images.
  std::optional<SelfTest> self_test() {
    if (metadata_.probes.empty()) return {};
    SelfTest result{metadata_.probes.size(), 0, metadata_.exact ? 1e-4 : 1e-2};
    for (const Probe& probe : metadata_.probes) {
      const Prediction answer = predict(probe_image(probe.pattern, metadata_), pass_seeds(probe.samples, 0));
      for (const auto& [name, wanted] : probe.outputs) {
        const std::vector<float> got = answer.values(name);
        if (got.empty()) continue;  // an output of a later version
        const bool is_score = name == "novelty_score";
        for (std::size_t i = 0; i < std::max(got.size(), wanted.size()); ++i) {
          const bool both = i < got.size() && i < wanted.size();
          const double scale = both && is_score ? std::max(1.0, std::abs(wanted[i])) : 1.0;
          const double difference = both ? std::abs(double(got[i]) - wanted[i]) / scale : HUGE_VAL;
          result.difference = std::max(result.difference, std::isnan(difference) ? HUGE_VAL : difference);
        }
      }
    }
    return result;
  }

 private:
  static constexpr const char* inputs[] = {"image", "seeds"};

  std::string broken() const { return path_ + " breaks the contract: its graph is not what its metadata says."; }

  ONNXTensorElementDataType pixel_type() const {
    return metadata_.float32 ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT : ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
  }

  // An output's numbers, of which there must be so many of this type.
  template <typename T>
  const T* data(const Ort::Value& value, std::size_t count) const {
    const auto info = value.GetTensorTypeAndShapeInfo();
    const bool kept = info.GetElementType() == Ort::TypeToTensorType<T>::type && info.GetElementCount() == count;
    if (!kept) throw Error(broken());
    return value.GetTensorData<T>();
  }

  void check_signature(OrtAllocator* allocator) const {
    std::set<std::string> taken, given;
    bool same = false;  // the image of the graph and of the metadata
    for (std::size_t i = 0; i < session_.GetInputCount(); ++i) {
      const std::string name = session_.GetInputNameAllocated(i, allocator).get();
      taken.insert(name);
      const Ort::TypeInfo type = session_.GetInputTypeInfo(i);
      if (name != inputs[0] || type.GetONNXType() != ONNX_TYPE_TENSOR) continue;
      const auto info = type.GetTensorTypeAndShapeInfo();
      const auto shape = info.GetShape();
      same = info.GetElementType() == pixel_type() && shape.size() == 4 && shape[1] == metadata_.height &&
             shape[2] == metadata_.width && shape[3] == metadata_.channels;
    }
    for (std::size_t i = 0; i < session_.GetOutputCount(); ++i) {
      given.insert(session_.GetOutputNameAllocated(i, allocator).get());
    }
    const std::set<std::string> wanted(std::begin(inputs), std::end(inputs) - (metadata_.takes_seeds ? 0 : 1));
    const auto is_given = [&](const char* name) { return given.count(name) == 1; };
    const bool complete = std::all_of(std::begin(outputs), std::end(outputs), is_given) &&
                          std::all_of(metadata_.optional.begin(), metadata_.optional.end(), is_given);
    if (!same || taken != wanted || !complete) throw Error(broken());
  }

  // Without this check a library that is older than the headers ends the program.
  static Ort::Env environment() {
    if (OrtGetApiBase()->GetApi(ORT_API_VERSION) == nullptr) {
      throw Error("ONNX Runtime " + std::string(OrtGetApiBase()->GetVersionString()) +
                  " is older than the headers of this program, which need 1." + std::to_string(ORT_API_VERSION) + ".");
    }
    return Ort::Env(ORT_LOGGING_LEVEL_FATAL, "uce_edge");  // errors are told by exceptions, once
  }

  std::string path_;
  Ort::Env environment_ = environment();
  Ort::Session session_{nullptr};
  Metadata metadata_;
};

}  // namespace uce_edge
