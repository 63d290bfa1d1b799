// Runs a uce-edge model file (docs/contract.md, version 2) with ONNX Runtime and nothing else.
//
//     uce_edge::Model model("digits.onnx");
//     auto answer = model.predict(pixels, model.seeds());
//     if (answer.decision == uce_edge::Decision::accept) act_on(answer.label);
//
// These throw a `uce_edge::Error`. What takes a `Failure&` does not, and is all there is under -fno-exceptions.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
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
#include "uce_edge_maps.hpp"
#include "uce_edge_merge.hpp"
#include "uce_edge_range.hpp"
#include "uce_edge_resize.hpp"
#include "uce_edge_session.hpp"

namespace uce_edge {

constexpr int contract_version = 2;
constexpr std::int64_t max_samples = 4096;
constexpr std::int64_t max_seed = 4095;
inline constexpr const char* inferences[] = {"mc", "moments", "deterministic"};
// What every file is asked for. A file may have more outputs, and its metadata more keys: they are ignored.
inline constexpr const char* outputs[] = {"probabilities",     "class_id",       "uncertainty",
                                          "model_uncertainty", "standard_error", "error_probability",
                                          "decision"};
// What a file is asked for when its metadata lists it.
inline constexpr const char* optional_outputs[] = {"novelty", "novelty_score", "in_set", "heatmap", "heatmap_spread"};
// By `Decision`, as in JSON.
inline constexpr const char* reasons[] = {"", "uncertain", "out-of-distribution", "both"};

#ifdef __cpp_exceptions
// What a user is told, in one sentence.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The request itself is wrong.
struct UsageError : Error {
  using Error::Error;
};

namespace detail {
inline void raise(const Failure& failure) {
  if (failure.kind == Failure::Kind::usage) throw UsageError(failure.message);
  if (failure) throw Error(failure.message);
}
}  // namespace detail
#endif

// The passes that the promise about the error holds for.
struct Promise {
  std::int64_t samples = 0;
  std::int64_t seed = 0;
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
  bool deterministic = false, moments = false;
  std::optional<Range> range;  // of gray values of more than 8 bits, for `to_8_bits`
  Resize resize;               // how `Model::prepare` brings an image to the model's size
  bool takes_seeds = true;  // a deterministic model does not, nor one whose passes are baked in
  std::int64_t samples = 0;
  std::int64_t members = 1;                   // networks of an ensemble
  std::optional<std::int64_t> calibrated_at;  // the number of passes that the calibration was fitted at
  std::vector<double> error_map;  // two parameters, of the confidence; three, of the uncertainty, in an older file; or none
  std::optional<Costs> costs;
  std::vector<const char*> optional;  // those of `optional_outputs` that the file has
  std::optional<Rule> rule;  // that the output `decision` applies; without one, only NaN is rejected
  std::optional<Promise> promise;
  std::optional<Sets> sets;  // that the output `in_set` applies
  std::vector<Probe> probes;
  bool exact = true;  // the network computes in float32

  std::size_t image_bytes() const { return std::size_t(height * width * channels) * (float32 ? 4 : 1); }

  static Failure parse(const std::string& json, const std::string& source, Metadata& result) {
    using Kind = detail::Json::Kind;
    std::string damage;
    const detail::Json document = detail::JsonParser(json, damage).document();
    const detail::Json* version = document.find("contract");
    const bool known = version != nullptr && version->kind == Kind::number;
    if (damage.empty() && !(known && version->number == contract_version)) {
      std::ostringstream shown;
      if (known) shown << version->number;
      const bool older = known && version->number < contract_version;
      return Failure::failed(source + " follows model contract " + (known ? shown.str() : "null") +
                             ", and this program reads contract " + std::to_string(contract_version) + "." +
                             (older ? " Convert it: uce-edge export " + source + " --out new.onnx" : ""));
    }
    if (damage.empty()) result = from(document);
    return damage.empty() ? Failure{} : Failure::failed(source + " has damaged metadata: " + damage + ".");
  }

 private:
  static Metadata from(const detail::Json& document) {
    using Kind = detail::Json::Kind;
    Metadata result;
    for (const detail::Json& name : document.at("classes", Kind::array).items) {
      if (name.kind != Kind::string) document.damaged("a class has no name");
      result.classes.push_back(name.text);
    }
    if (result.classes.size() < 2) document.damaged("it has less than two classes");
    const detail::Json& image = document.at("image", Kind::object);
    result.height = image.whole("height", 1, 1 << 16);
    result.width = image.whole("width", 1, 1 << 16);
    result.channels = image.whole("channels", 1, 1 << 10);
    const std::string dtype = image.at("dtype", Kind::string).text;
    if (dtype != "uint8" && dtype != "float32") document.damaged("its pixels are " + dtype);
    result.float32 = dtype == "float32";
    if (image.has("range")) {
      const detail::Json& stored = image.at("range", Kind::object);
      result.range = Range{stored.at("low", Kind::number).number, stored.at("high", Kind::number).number};
      if (!(result.range->low < result.range->high)) document.damaged("its range ends before it starts");
    }
    if (image.has("resize")) result.resize = stored_resize(image.at("resize", Kind::object), result);
    const std::string inference = document.at("inference", Kind::string).text;
    if (std::find(std::begin(inferences), std::end(inferences), inference) == std::end(inferences)) {
      document.damaged("its inference is " + inference);
    }
    result.deterministic = inference == "deterministic";
    result.moments = inference == "moments";
    const detail::Json* baked = document.find("baked");
    result.takes_seeds = !result.deterministic && (baked == nullptr || baked->number == 0);
    result.samples = document.whole("samples", 1, max_samples);
    if (document.has("members")) result.members = document.whole("members", 1, 1 << 16);
    if (document.has("costs")) result.costs = stored_costs(document.at("costs", Kind::object));
    if (const detail::Json* map = document.find("calibration"); map != nullptr) {
      const detail::Json* fitted = map->find("samples");
      const bool known = fitted != nullptr && fitted->kind == Kind::number;
      if (known) result.calibrated_at = map->whole("samples", 1, max_samples);
      for (const auto& [key, count] : {std::pair{"confidence_error", 2}, std::pair{"error", 3}}) {
        if (!map->has(key)) continue;
        for (const detail::Json& value : map->at(key, Kind::array).items) result.error_map.push_back(value.number);
        if (result.error_map.size() != std::size_t(count)) {
          map->damaged("its error map has not " + std::string(count == 3 ? "three" : "two") + " numbers");
        }
        break;
      }
    }
    if (document.has("outputs")) {
      for (const detail::Json& listed : document.at("outputs", Kind::array).items) {
        for (const char* name : optional_outputs) {
          if (listed.text == name) result.optional.push_back(name);
        }
      }
    }
    if (document.has("rule")) {
      const detail::Json& rule = document.at("rule", Kind::object);
      result.rule = stored_rule(rule, result.classes.size());
      if (result.rule->cutoff && !result.has_output("novelty")) document.damaged("its rule needs the output novelty");
      if (rule.has("promise")) {
        const detail::Json& promise = rule.at("promise", Kind::object);
        const std::int64_t samples = promise.whole("samples", 1, max_samples);
        result.promise = Promise{samples, promise.whole("seed", 0, max_seed)};
      }
    }
    if (document.has("sets") != result.has_output("in_set")) {
      document.damaged("its sets and its outputs contradict each other");
    } else if (document.has("sets")) {
      result.sets = stored_sets(document.at("sets", Kind::object), result.classes.size());
    }
    if (document.has("precision")) result.exact = document.at("precision", Kind::string).text == "fp32";
    if (document.has("probe")) {
      for (const detail::Json& stored : document.at("probe", Kind::array).items) result.probes.push_back(probe(stored));
    }
    return result;
  }

  // A mode or filter that is not known is refused: another one would give other pixels, and so other answers.
  static Resize stored_resize(const detail::Json& stored, const Metadata& image) {
    using Kind = detail::Json::Kind;
    const auto chosen = [&](const char* key, const auto& names) {
      const std::string name = stored.at(key, Kind::string).text;
      const auto place = std::find(std::begin(names), std::end(names), name);
      if (place != std::end(names)) return int(place - std::begin(names));
      stored.damaged("its resize " + std::string(key) + " is " + name);
      return 0;
    };
    Resize result;
    if (stored.has("mode")) result.mode = ResizeMode(chosen("mode", resize_modes));
    if (stored.has("filter")) result.filter = ResizeFilter(chosen("filter", resize_filters));
    if (result.mode == ResizeMode::crop) {
      result.size = stored.whole("size", std::max(image.height, image.width), max_side);
    } else if (stored.has("size")) {
      stored.damaged("its resize has a size that only crop takes");
    }
    if (!stored.has("fill")) return result;
    const detail::Json* fill = stored.find("fill");
    const std::vector<detail::Json> colour = fill->kind == Kind::array ? fill->items : std::vector{*fill};
    bool sound = colour.size() == 1 || std::int64_t(colour.size()) == image.channels;
    for (const detail::Json& value : colour) {
      const bool level = value.kind == Kind::number && value.number >= 0 && value.number <= 255;
      sound = sound && level && value.number == std::floor(value.number);
      result.fill.push_back(level ? std::uint8_t(value.number) : std::uint8_t(0));
    }
    if (!sound) stored.damaged("its resize fill is no colour");
    const bool black = result.fill == std::vector<std::uint8_t>{0};
    if (result.mode != ResizeMode::pad && !black) stored.damaged("its resize has a fill that only pad takes");
    return result;
  }

  static Costs stored_costs(const detail::Json& stored) {
    using Kind = detail::Json::Kind;
    const auto counted = [&](const char* key) {
      const double value = stored.has(key) ? stored.at(key, Kind::number).number : 0;
      if (!(value >= 0)) stored.damaged("its key " + std::string(key) + " is out of range");
      return value;
    };
    return {counted("macs_once"), counted("macs_per_pass"), counted("bytes_per_pass"), counted("bytes_per_draw")};
  }

  static Probe probe(const detail::Json& stored) {
    using Kind = detail::Json::Kind;
    if (stored.kind != Kind::object) stored.damaged("its key probe has the wrong type");
    Probe result{stored.at("pattern", Kind::string).text, stored.whole("samples", 1, max_samples), {}};
    const detail::Json& outputs = stored.at("outputs", Kind::object);
    for (const std::string& name : outputs.keys) {
      std::vector<double> numbers;
      for (const detail::Json& value : outputs.at(name, Kind::array).items) {
        if (value.kind != Kind::number) stored.damaged("a probe has an answer that is no number");
        numbers.push_back(value.number);
      }
      result.outputs.emplace_back(name, std::move(numbers));
    }
    return result;
  }

  bool has_output(const std::string& name) const {
    return std::find(optional.begin(), optional.end(), name) != optional.end();
  }

  static Sets stored_sets(const detail::Json& stored, std::size_t classes) {
    using Kind = detail::Json::Kind;
    Sets sets;
    const std::string score = stored.at("score", Kind::string).text;
    sets.cumulative = score == "aps" || score == "raps";
    if (!sets.cumulative && score != "lac") stored.damaged("its sets compare " + score);
    for (const detail::Json& limit : stored.at("limits", Kind::array).items) {
      if (limit.kind != Kind::number) stored.damaged("a limit of its sets is no number");
      sets.limits.push_back(float(limit.number));
    }
    if (sets.limits.size() == 1) sets.limits.resize(classes, sets.limits[0]);
    if (sets.limits.size() != classes) stored.damaged("its sets have not one limit for every label");
    if (stored.has("penalty")) sets.penalty = stored.at("penalty", Kind::number).number;
    if (stored.has("free")) sets.free = stored.at("free", Kind::number).number;
    sets.samples = stored.whole("samples", 1, max_samples);
    sets.seed = stored.whole("seed", 0, max_seed);
    return sets;
  }

  static Rule stored_rule(const detail::Json& stored, std::size_t classes) {
    using Kind = detail::Json::Kind;
    Rule rule;
    const std::string score = stored.at("score", Kind::string).text;
    rule.by_confidence = score == "confidence";
    if (!rule.by_confidence && score != "uncertainty") stored.damaged("its rule compares " + score);
    if (stored.has("cutoff")) rule.cutoff = float(stored.at("cutoff", Kind::number).number);
    if (!stored.has("limits")) return rule;
    for (const detail::Json& limit : stored.at("limits", Kind::array).items) {
      if (limit.kind != Kind::number) stored.damaged("a limit of its rule is no number");
      rule.limits.push_back(float(limit.number));
    }
    if (rule.limits.size() == 1) rule.limits.resize(classes, rule.limits[0]);
    if (rule.limits.size() != classes) stored.damaged("its rule has not one limit for every class");
    return rule;
  }
};

// One image's answer; the contract says what each number means.
struct Prediction {
  std::string label;
  std::int32_t class_id = 0;
  std::vector<float> probabilities;
  float uncertainty = 0, model_uncertainty = 0, standard_error = 0, error_probability = 0;
  Decision decision = Decision::accept;         // by the rule of the file; without one, only NaN is rejected
  std::optional<float> novelty, novelty_score;  // of a file that detects out-of-distribution images
  std::optional<std::vector<std::int32_t>> set;  // the labels of the prediction set, the likeliest first; of a file with sets
  std::optional<Map> heatmap, heatmap_spread;  // of a file with heatmaps; none where merged calls predict different classes

  // Whether the uncertainty is above a threshold of your own, or NaN.
  bool is_uncertain(float threshold) const { return !(uncertainty <= threshold); }

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
};

// Pixels that stay where they are: height x width x channels, rows from the top, channels last, not normalised.
struct Image {
  const void* pixels = nullptr;
  std::ptrdiff_t stride = 0;  // bytes from one row to the next, negative for rows from below; 0 for rows without a gap
};

// The passes of a request: the first N of the 4096 that a seed owns.
struct Passes {
  std::int64_t samples = 0;  // 0 for the number stored in the file
  std::int64_t seed = 0;
};

namespace detail {
inline Failure outside(const char* name, std::int64_t low, std::int64_t high, std::int64_t value) {
  if (value >= low && value <= high) return {};
  return Failure::usage("Expected `" + std::string(name) + "` to be between " + std::to_string(low) + " and " +
                        std::to_string(high) + ", but got " + std::to_string(value) + ".");
}
}  // namespace detail

// The seeds that `--samples N --seed S` stands for.
inline std::vector<std::int32_t> pass_seeds(std::int64_t samples, std::int64_t seed, Failure& failure) {
  failure = detail::outside("samples", 1, max_samples, samples);
  if (!failure) failure = detail::outside("seed", 0, max_seed, seed);
  std::vector<std::int32_t> seeds(failure ? 0 : static_cast<std::size_t>(samples));
  std::iota(seeds.begin(), seeds.end(), static_cast<std::int32_t>(seed * max_samples));
  return seeds;
}

// The pixels of a probe image, as bytes that `Model::predict` takes.
inline std::vector<std::uint8_t> probe_image(const std::string& pattern, const Metadata& m, Failure& failure) {
  const bool weyl = pattern == "weyl";
  if (!weyl && pattern != "ramp") {
    failure = Failure::failed("A probe image has the pattern " + pattern + ", which is not known here.");
    return {};
  }
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

// A model file, ready to predict, from several threads if need be.
class Model {
 public:
  // Nothing, and why, when it cannot be.
  static std::optional<Model> load(const Source& source, const Options& options, Failure& failure) {
    Model model;
    failure = model.open(source, options);
    if (failure) return {};
    return std::optional<Model>(std::move(model));
  }

#ifdef __cpp_exceptions
  // `threads` of ONNX Runtime; 0 for all cores.
  explicit Model(const std::string& path, int threads = 0) : Model(Source{path}, with_threads(threads)) {}

  Model(const Source& source, const Options& options) { detail::raise(open(source, options)); }

  // The passes of a request; without one, the number stored in the file.
  std::vector<std::int32_t> seeds(std::optional<std::int64_t> samples = {}, std::int64_t seed = 0) const {
    Failure failure = samples ? detail::outside("samples", 1, max_samples, *samples) : Failure{};
    std::vector<std::int32_t> found;
    if (!failure) found = seeds(Passes{samples.value_or(0), seed}, failure);
    detail::raise(failure);
    return found;
  }

  // The pixels that `predict` takes, of an 8-bit image of any size: resized as in Python, to the byte.
  std::vector<std::uint8_t> prepare(const Frame& frame) const {
    Failure failure;
    auto pixels = prepare(frame, failure);
    detail::raise(failure);
    return pixels;
  }

  // Classifies one image: raw pixels, rows from the top, channels last, not normalised.
  Prediction predict(const std::vector<std::uint8_t>& image, const std::vector<std::int32_t>& seeds) const {
    const Metadata& m = metadata_;
    if (image.size() != m.image_bytes()) {
      throw Error("Expected `image` to be " + std::to_string(m.image_bytes()) + " bytes (" + std::to_string(m.height) +
                  " x " + std::to_string(m.width) + " x " + std::to_string(m.channels) + ", " +
                  (m.float32 ? "float32" : "uint8") + "), but got " + std::to_string(image.size()) + ".");
    }
    return std::move(predict(std::vector<Image>{{image.data(), 0}}, seeds).front());
  }

  // Classifies several images.
  std::vector<Prediction> predict(const std::vector<Image>& images, const std::vector<std::int32_t>& seeds) const {
    Failure failure;
    auto answers = predict(images, seeds, failure);
    detail::raise(failure);
    return answers;
  }

  void warm_up(std::size_t images = 1, Passes passes = {}, int runs = 1) const {
    Failure failure;
    warm_up(images, passes, runs, failure);
    detail::raise(failure);
  }

  std::optional<SelfTest> self_test() const {
    Failure failure;
    const auto found = self_test(failure);
    detail::raise(failure);
    return found;
  }
#endif

  const Metadata& metadata() const { return metadata_; }

  std::vector<std::int32_t> seeds(Passes passes, Failure& failure) const {
    const std::int64_t samples = passes.samples == 0 ? metadata_.samples : passes.samples;
    const char* kind = metadata_.deterministic ? "a deterministic model" : "a model with its passes baked in";
    const auto left_out = [&](const char* name, std::int64_t value) {
      failure = Failure::usage("Expected `" + std::string(name) + "` to be left out for " + kind + ", but got " +
                               std::to_string(value) + ".");
      return std::vector<std::int32_t>{};
    };
    if (!metadata_.takes_seeds && samples != metadata_.samples) return left_out("samples", samples);
    if (!metadata_.takes_seeds && !metadata_.deterministic && passes.seed != 0) return left_out("seed", passes.seed);
    return pass_seeds(samples, passes.seed, failure);
  }

  std::vector<std::uint8_t> prepare(const Frame& frame, Failure& failure) const {
    const Metadata& m = metadata_;
    const Shape shape{m.width, m.height, m.channels};
    const std::string reason = unusable(frame, shape, m.resize);
    failure = reason.empty() ? Failure{} : Failure::usage(reason);
    if (failure) return {};
    if (!m.float32) return resized<std::uint8_t>(frame, shape, m.resize);
    const std::vector<float> pixels = resized<float>(frame, shape, m.resize);
    std::vector<std::uint8_t> bytes(m.image_bytes());
    std::memcpy(bytes.data(), pixels.data(), bytes.size());
    return bytes;
  }

  // One answer for each image; none when `failure` says why. As in Python, a call of ONNX Runtime holds 32 image-passes
  // at most, or as many as the file's costs allow, and what is split is merged: memory stays flat.
  std::vector<Prediction> predict(const std::vector<Image>& images, const std::vector<std::int32_t>& seeds,
                                  Failure& failure) const {
    failure = refused(images, seeds);
    std::vector<Prediction> answers;
    std::vector<std::uint8_t> copy;
    const std::size_t step = calls_.images(seeds.size());
    for (std::size_t first = 0; first < images.size() && !failure; first += step) {
      const std::size_t count = std::min(step, images.size() - first);
      const void* pixels = together(images.data() + first, count, copy);
      const bool whole = !metadata_.takes_seeds || seeds.size() <= calls_.passes();
      failure = whole ? run(pixels, count, seeds, answers) : run_split(pixels, seeds, answers);
    }
    if (failure) answers.clear();
    return answers;
  }

  // Answers an image of no meaning, so that the first real one finds all memory and caches ready.
  void warm_up(std::size_t images, Passes passes, int runs, Failure& failure) const {
    const auto drawn = seeds(passes, failure);
    if (failure) return;
    const auto image = probe_image("weyl", metadata_, failure);
    const std::vector<Image> batch(images, Image{image.data(), 0});
    for (int i = 0; i < runs && !failure; ++i) predict(batch, drawn, failure);
  }

  // Answers the file's own probe images here, and compares with what it answered when it was published: a broken driver
  // or a wrong kernel answers otherwise. Nothing for a file without probe images.
  std::optional<SelfTest> self_test(Failure& failure) const {
    if (metadata_.probes.empty()) return {};
    SelfTest result{metadata_.probes.size(), 0, metadata_.exact ? 1e-4 : 1e-2};
    for (const Probe& probe : metadata_.probes) {
      const auto image = probe_image(probe.pattern, metadata_, failure);
      if (failure) return {};
      const auto seeds = pass_seeds(probe.samples, 0, failure);
      const auto answers = failure ? std::vector<Prediction>{} : predict({{image.data(), 0}}, seeds, failure);
      if (failure) return {};
      for (const auto& [name, wanted] : probe.outputs) {
        const std::vector<float> got = answers[0].values(name);
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
  using Values = std::vector<detail::Session::Value>;
  static constexpr const char* inputs[] = {"image", "seeds"};
  static constexpr const char* pass_probabilities = "pass_probabilities";
  static inline const std::string in_set = "in_set", heatmap = "heatmap", heatmap_spread = "heatmap_spread";

  static bool is_map(const std::string& name) { return name == heatmap || name == heatmap_spread; }

  Model() = default;

  static Options with_threads(int threads) {
    Options options;
    options.threads = threads;
    return options;
  }

  Failure open(const Source& source, const Options& options) {
    path_ = source.path;
    Failure failure = detail::outside("threads", 0, 1024, options.threads);
    if (!failure) failure = detail::outside("max_memory", 0, 1 << 30, options.max_memory);
    if (!failure) failure = session_.open(source, options);
    if (failure) return failure;
    std::string json;
    if (!session_.metadata("uce_edge", json)) {
      return Failure::failed(path_ + " is an ONNX file, but not a uce-edge model: it has no metadata under uce_edge.");
    }
    failure = Metadata::parse(json, path_, metadata_);
    if (!failure && !keeps_signature()) failure = broken();
    const double memory = (options.max_memory == 0 ? 256.0 : options.max_memory) * 1024 * 1024;
    const double each = metadata_.costs ? metadata_.costs->bytes_per_pass : 0;
    if (!failure && options.max_memory > 0 && each > memory) {
      const int least = int(std::ceil(each / 1024 / 1024));
      return Failure::usage("Expected `max_memory` to be at least " + std::to_string(least) + " MB, which one pass of " + path_ + " takes, but got " +
                            std::to_string(options.max_memory) + ".");
    }
    const double numbers = double(metadata_.classes.size()) * double(metadata_.members);  // that a pass gives
    calls_ = detail::CallSize(metadata_.costs, metadata_.moments, numbers, memory, options.provider == "cpu");
    return failure;
  }

  Failure refused(const std::vector<Image>& images, const std::vector<std::int32_t>& seeds) const {
    if (seeds.empty() || seeds.size() > std::size_t(max_samples)) {
      return Failure::usage("Expected `seeds` to be 1 to " + std::to_string(max_samples) + " numbers, but got " +
                            std::to_string(seeds.size()) + ".");
    }
    const auto row = static_cast<std::ptrdiff_t>(metadata_.image_bytes() / std::size_t(metadata_.height));
    for (const Image& image : images) {
      if (image.pixels == nullptr) return Failure::usage("Expected `image` to be pixels, but got none.");
      if (image.stride != 0 && std::abs(image.stride) < row) {
        return Failure::usage("Expected `stride` to be at least the " + std::to_string(row) +
                              " bytes of a row, but got " + std::to_string(image.stride) + ".");
      }
    }
    return {};
  }

  // The pixels of images one after the other: where they lie, if they lie so, and else in a copy.
  const void* together(const Image* images, std::size_t count, std::vector<std::uint8_t>& copy) const {
    const std::size_t size = metadata_.image_bytes(), row = size / std::size_t(metadata_.height);
    const auto* first = static_cast<const std::uint8_t*>(images[0].pixels);
    bool lies_so = true;
    for (std::size_t i = 0; i < count; ++i) {
      const bool gapless = images[i].stride == 0 || images[i].stride == std::ptrdiff_t(row);
      lies_so = lies_so && gapless && images[i].pixels == first + i * size;
    }
    if (lies_so) return first;
    copy.resize(count * size);
    for (std::size_t i = 0; i < count; ++i) {
      const auto* from = static_cast<const std::uint8_t*>(images[i].pixels);
      const std::ptrdiff_t stride = images[i].stride == 0 ? std::ptrdiff_t(row) : images[i].stride;
      for (std::int64_t y = 0; y < metadata_.height; ++y) {
        std::memcpy(copy.data() + i * size + std::size_t(y) * row, from + y * stride, row);
      }
    }
    return copy.data();
  }

  Failure broken() const {
    return Failure::failed(path_ + " breaks the contract: its graph is not what its metadata says.");
  }

  ONNXTensorElementDataType pixel_type() const {
    return metadata_.float32 ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT : ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
  }

  Failure call(const void* pixels, std::size_t count, const std::int32_t* seeds, std::size_t passes,
               const std::vector<const char*>& asked, Values& values) const {
    const Metadata& m = metadata_;
    const auto many = static_cast<std::int64_t>(count);
    std::vector<detail::Session::Input> feed = {
        {inputs[0], pixels, count * m.image_bytes(), {pixel_type(), {many, m.height, m.width, m.channels}}}};
    if (m.takes_seeds) {
      const detail::Shape shape{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, {static_cast<std::int64_t>(passes)}};
      feed.push_back({inputs[1], seeds, passes * sizeof *seeds, shape});
    }
    const std::string reason = session_.run(feed, asked, values);
    return reason.empty() ? Failure{} : Failure::failed(path_ + " could not be run: " + reason);
  }

  // An output's numbers, of which there must be so many.
  const float* floats(const Values& values, std::size_t place, std::size_t count) const {
    return static_cast<const float*>(session_.numbers(values[place], ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, count));
  }

  // An output's maps, one for each image; none if it has another shape.
  std::vector<Map> maps(const Values& values, std::size_t place, std::size_t count) const {
    const std::vector<std::int64_t> sides = session_.sides(values[place]);
    if (sides.size() != 3 || sides[0] != std::int64_t(count) || sides[1] < 1 || sides[2] < 1) return {};
    const auto height = std::size_t(sides[1]), width = std::size_t(sides[2]);
    const float* found = floats(values, place, count * height * width);
    std::vector<Map> result;
    for (std::size_t i = 0; found != nullptr && i < count; ++i, found += height * width) {
      result.push_back({height, width, {found, found + height * width}});
    }
    return result;
  }

  // All passes of some images in one call.
  Failure run(const void* pixels, std::size_t count, const std::vector<std::int32_t>& seeds,
              std::vector<Prediction>& answers) const {
    const Metadata& m = metadata_;
    const std::size_t classes = m.classes.size(), required = std::size(outputs);
    std::vector<const char*> asked(std::begin(outputs), std::end(outputs));
    asked.insert(asked.end(), m.optional.begin(), m.optional.end());
    Values values;
    const Failure failure = call(pixels, count, seeds.data(), seeds.size(), asked, values);
    if (failure) return failure;
    const float* probabilities = floats(values, 0, count * classes);
    const auto* ids = static_cast<const std::int32_t*>(
        session_.numbers(values[1], ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, count));
    const auto* decisions = static_cast<const std::int32_t*>(
        session_.numbers(values[required - 1], ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, count));
    std::vector<const float*> numbers;  // the others, one for each image
    const bool* inside = nullptr;
    std::vector<Map> means, spreads;
    for (std::size_t i = 2; i < asked.size(); ++i) {
      if (asked[i] == in_set) {
        const auto type = ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
        inside = static_cast<const bool*>(session_.numbers(values[i], type, count * classes));
        if (inside == nullptr) return broken();
      } else if (is_map(asked[i])) {
        std::vector<Map>& found = asked[i] == heatmap ? means : spreads;
        found = maps(values, i, count);
        if (found.size() != count) return broken();
      } else if (i != required - 1) {
        numbers.push_back(floats(values, i, count));
      }
    }
    const bool kept = probabilities != nullptr && ids != nullptr && decisions != nullptr &&
                      std::find(numbers.begin(), numbers.end(), nullptr) == numbers.end();
    if (!kept) return broken();
    for (std::size_t i = 0; i < count; ++i) {
      Prediction answer;
      answer.probabilities.assign(probabilities + i * classes, probabilities + (i + 1) * classes);
      answer.uncertainty = numbers[0][i];
      answer.model_uncertainty = numbers[1][i];
      answer.standard_error = numbers[2][i];
      answer.error_probability = numbers[3][i];
      std::size_t next = required - 3;
      for (const char* name : m.optional) {
        if (name != in_set && !is_map(name)) optional(answer, name, numbers[next++][i]);
      }
      if (!means.empty()) answer.heatmap = std::move(means[i]);
      if (!spreads.empty()) answer.heatmap_spread = std::move(spreads[i]);
      if (inside != nullptr) {
        labels(answer, std::vector<bool>(inside + i * classes, inside + (i + 1) * classes));
      }
      if (!named(answer, ids[i]) || decisions[i] < 0 || decisions[i] > int(Decision::both)) return broken();
      answer.decision = Decision(decisions[i]);
      answers.push_back(std::move(answer));
    }
    return {};
  }

  // The passes of one image in several calls.
  Failure run_split(const void* pixels, const std::vector<std::int32_t>& seeds,
                    std::vector<Prediction>& answers) const {
    const Metadata& m = metadata_;
    const std::size_t classes = m.classes.size(), members = std::size_t(m.members);
    Prediction answer;
    std::vector<float> passes;
    passes.reserve(seeds.size() * members * classes);
    // The set follows from all passes, and every call gives the same numbers; but each has maps of its own.
    std::vector<const char*> each(1, pass_probabilities), once;
    for (const char* name : m.optional) {
      if (name != in_set) (is_map(name) ? each : once).push_back(name);
    }
    const bool mapped = each.size() > 1, spread = each.size() > 2;  // in the order of the graph
    if (mapped) each.push_back(outputs[1]);
    detail::PooledMaps pooled;
    for (std::size_t first = 0; first < seeds.size(); first += calls_.passes()) {
      const std::size_t count = std::min(calls_.passes(), seeds.size() - first);
      std::vector<const char*> asked = each;
      if (first == 0) asked.insert(asked.end(), once.begin(), once.end());
      Values values;
      const Failure failure = call(pixels, 1, seeds.data() + first, count, asked, values);
      if (failure) return failure;
      const float* fresh = floats(values, 0, count * members * classes);
      if (fresh == nullptr) return broken();
      passes.insert(passes.end(), fresh, fresh + count * members * classes);
      if (mapped) {
        const std::vector<Map> mean = maps(values, 1, 1), other = spread ? maps(values, 2, 1) : mean;
        const auto* id = static_cast<const std::int32_t*>(
            session_.numbers(values[each.size() - 1], ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 1));
        if (mean.empty() || other.empty() || other[0].values.size() != mean[0].values.size() || id == nullptr) return broken();
        pooled.add(count, *id, mean[0], spread ? &other[0] : nullptr);
      }
      for (std::size_t i = each.size(); i < asked.size(); ++i) {
        const float* number = floats(values, i, 1);
        if (number == nullptr) return broken();
        optional(answer, asked[i], *number);
      }
    }
    const detail::Summary summary = detail::summarise(passes, classes, members, m.error_map);
    answer.probabilities = summary.probabilities;
    answer.uncertainty = summary.uncertainty;
    answer.model_uncertainty = summary.model_uncertainty;
    answer.standard_error = summary.standard_error;
    answer.error_probability = summary.error_probability;
    if (!named(answer, std::int32_t(summary.class_id))) return broken();
    answer.decision = detail::decide(m.rule.value_or(Rule{}), summary, answer.novelty.value_or(0));
    if (m.sets) labels(answer, detail::contained(*m.sets, answer.probabilities));
    pooled.of(answer.class_id, answer.heatmap, spread ? &answer.heatmap_spread : nullptr);
    answers.push_back(std::move(answer));
    return {};
  }

  static void labels(Prediction& answer, const std::vector<bool>& inside) {
    answer.set.emplace();
    for (std::size_t i = 0; i < inside.size(); ++i) {
      if (inside[i]) answer.set->push_back(std::int32_t(i));
    }
    const auto likelier = [&](std::int32_t a, std::int32_t b) {
      return answer.probabilities[std::size_t(a)] > answer.probabilities[std::size_t(b)];
    };
    std::stable_sort(answer.set->begin(), answer.set->end(), likelier);
  }

  static void optional(Prediction& answer, const std::string& name, float value) {
    (name == "novelty" ? answer.novelty : answer.novelty_score) = value;
  }

  bool named(Prediction& answer, std::int32_t class_id) const {
    if (class_id < 0 || std::size_t(class_id) >= metadata_.classes.size()) return false;
    answer.class_id = class_id;
    answer.label = metadata_.classes[std::size_t(class_id)];
    return true;
  }

  bool keeps_signature() const {
    const std::vector<std::string> taken = session_.inputs(), given = session_.outputs();
    const std::set<std::string> wanted(std::begin(inputs), std::end(inputs) - (metadata_.takes_seeds ? 0 : 1));
    if (std::set<std::string>(taken.begin(), taken.end()) != wanted) return false;
    const auto place = std::size_t(std::find(taken.begin(), taken.end(), inputs[0]) - taken.begin());
    const detail::Shape image = session_.input_shape(place);
    if (image.type != pixel_type() || image.sides.size() != 4) return false;
    const std::int64_t sides[] = {metadata_.height, metadata_.width, metadata_.channels};
    if (!std::equal(std::begin(sides), std::end(sides), image.sides.begin() + 1)) return false;
    const auto is_given = [&](const char* name) { return std::find(given.begin(), given.end(), name) != given.end(); };
    return std::all_of(std::begin(outputs), std::end(outputs), is_given) && is_given(pass_probabilities) &&
           std::all_of(metadata_.optional.begin(), metadata_.optional.end(), is_given);
  }

  std::string path_;
  detail::Session session_;
  Metadata metadata_;
  detail::CallSize calls_;
};

}  // namespace uce_edge
