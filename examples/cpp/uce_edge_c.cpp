// The C interface of uce_edge.h around uce_edge.hpp. Builds with and without exceptions: with them, what the standard
// library throws when memory is full is told like every other failure; without them it ends the program.

#include "uce_edge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "uce_edge.hpp"

struct uce_edge_model {
  uce_edge::Model model;
};

struct uce_edge_maps {
  std::vector<std::optional<uce_edge::Map>> heatmaps, spreads;  // of every image
};

namespace {

using uce_edge::Failure;

constexpr float nothing = std::numeric_limits<float>::quiet_NaN();

void copy_text(const std::string& text, char* to, std::size_t size) {
  if (to == nullptr || size == 0) return;
  std::size_t length = std::min(text.size(), size - 1);
  while (length < text.size() && length > 0 && (text[length] & 0xC0) == 0x80) --length;  // no half of a character
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

int told(const Failure& failure, uce_edge_error* error) {
  if (error != nullptr) copy_text(failure.message, error->text, sizeof error->text);
  return failure.kind == Failure::Kind::usage ? UCE_EDGE_USAGE : failure ? UCE_EDGE_FAILED : UCE_EDGE_OK;
}

// Runs what may fail, and keeps exceptions on this side.
template <typename Work>
int guarded(uce_edge_error* error, Work work) {
#ifdef __cpp_exceptions
  try {
    return told(work(), error);
  } catch (const std::bad_alloc&) {
    return told(Failure::failed("The memory is full."), error);
  } catch (const std::exception& caught) {
    return told(Failure::failed(caught.what()), error);
  } catch (...) {  // from a caller's own `configure`
    return told(Failure::failed("Something was thrown that is no std::exception."), error);
  }
#else
  return told(work(), error);
#endif
}

uce_edge::Passes passes_of(const uce_edge_passes* given) {
  return given == nullptr ? uce_edge::Passes{} : uce_edge::Passes{given->samples, given->seed};
}

Failure load(const uce_edge::Source& source, const uce_edge_options* given, uce_edge_model** model) {
  if (model == nullptr) return Failure::usage("Expected `model` to be a place for the model, but got NULL.");
  *model = nullptr;
  uce_edge::Options options;
  if (given != nullptr) {
    options.threads = given->threads;
    options.arena = given->no_arena == 0;
    options.max_memory = given->max_memory;
    if (given->provider != nullptr) options.provider = given->provider;
    if (given->configure != nullptr) {
      options.configure = [given](const OrtApi& api, OrtSessionOptions* session) {
        return given->configure(&api, session, given->data);
      };
    }
  }
  Failure failure;
  auto loaded = uce_edge::Model::load(source, options, failure);
  if (loaded) *model = new uce_edge_model{std::move(*loaded)};
  return failure;
}

const float* map_of(const std::vector<std::optional<uce_edge::Map>>& maps, std::size_t image, std::int32_t* height,
                    std::int32_t* width) {
  *height = *width = 0;
  if (image >= maps.size() || !maps[image]) return nullptr;
  const uce_edge::Map& map = *maps[image];
  if (map.values.empty() || std::isnan(map.values[0])) return nullptr;  // no pass predicts the class on its own
  *height = std::int32_t(map.height);
  *width = std::int32_t(map.width);
  return map.values.data();
}

}  // namespace

extern "C" {

const char* uce_edge_message(const uce_edge_error* error) { return error == nullptr ? "" : error->text; }

int uce_edge_load(const char* path, const uce_edge_options* options, uce_edge_model** model, uce_edge_error* error) {
  return guarded(error, [&] {
    if (path == nullptr) return Failure::usage("Expected `path` to be the name of a file, but got NULL.");
    return load({path, nullptr, 0}, options, model);
  });
}

int uce_edge_load_bytes(const void* bytes, size_t size, const char* name, const uce_edge_options* options,
                        uce_edge_model** model, uce_edge_error* error) {
  return guarded(error, [&] {
    if (bytes == nullptr) return Failure::usage("Expected `bytes` to be those of a model file, but got NULL.");
    return load({name == nullptr ? "The model" : name, bytes, size}, options, model);
  });
}

void uce_edge_free(uce_edge_model* model) { delete model; }

void uce_edge_describe(const uce_edge_model* model, uce_edge_info* info) {
  const uce_edge::Metadata& m = model->model.metadata();
  const auto number = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  const auto is_novelty = [](const std::string name) { return name == "novelty"; };
  info->classes = number(std::int64_t(m.classes.size()));
  info->height = number(m.height);
  info->width = number(m.width);
  info->channels = number(m.channels);
  info->is_float32 = m.float32;
  info->samples = number(m.samples);
  info->calibrated_at = number(m.calibrated_at.value_or(0));
  info->has_novelty = std::any_of(m.optional.begin(), m.optional.end(), is_novelty);
  info->has_rule = m.rule.has_value();
  info->image_bytes = m.image_bytes();
}

const char* uce_edge_class_name(const uce_edge_model* model, int32_t class_id) {
  const auto& classes = model->model.metadata().classes;
  return class_id < 0 || std::size_t(class_id) >= classes.size() ? nullptr : classes[std::size_t(class_id)].c_str();
}

int uce_edge_prepare(const uce_edge_model* model, const uce_edge_frame* frame, void* pixels, uce_edge_error* error) {
  return guarded(error, [&] {
    Failure failure;
    const uce_edge::Frame view{frame->pixels, frame->width, frame->height, frame->channels, frame->stride};
    const auto prepared = model->model.prepare(view, failure);
    if (!failure) std::memcpy(pixels, prepared.data(), prepared.size());
    return failure;
  });
}

int uce_edge_predict(const uce_edge_model* model, const uce_edge_image* images, size_t count,
                     const uce_edge_passes* passes, uce_edge_answer* answers, float* probabilities,
                     uce_edge_error* error) {
  return uce_edge_predict_maps(model, images, count, passes, answers, probabilities, nullptr, error);
}

int uce_edge_predict_maps(const uce_edge_model* model, const uce_edge_image* images, size_t count,
                          const uce_edge_passes* passes, uce_edge_answer* answers, float* probabilities,
                          uce_edge_maps** maps, uce_edge_error* error) {
  if (maps != nullptr) *maps = nullptr;
  return guarded(error, [&] {
    Failure failure;
    std::unique_ptr<uce_edge_maps> kept(maps == nullptr ? nullptr : new uce_edge_maps);
    const auto seeds = model->model.seeds(passes_of(passes), failure);
    if (failure) return failure;
    std::vector<uce_edge::Image> views;
    for (std::size_t i = 0; i < count; ++i) views.push_back({images[i].pixels, images[i].stride});
    auto found = model->model.predict(views, seeds, failure);
    for (std::size_t i = 0; i < found.size(); ++i) {
      uce_edge::Prediction& one = found[i];
      answers[i] = {one.class_id,
                    std::int32_t(one.decision),
                    one.probabilities[std::size_t(one.class_id)],
                    one.uncertainty,
                    one.model_uncertainty,
                    one.standard_error,
                    one.error_probability,
                    one.novelty.value_or(nothing),
                    one.novelty_score.value_or(nothing)};
      if (probabilities != nullptr) {
        probabilities = std::copy(one.probabilities.begin(), one.probabilities.end(), probabilities);
      }
      if (kept) {
        kept->heatmaps.push_back(std::move(one.heatmap));
        kept->spreads.push_back(std::move(one.heatmap_spread));
      }
    }
    if (maps != nullptr && !failure) *maps = kept.release();
    return failure;
  });
}

const float* uce_edge_heatmap(const uce_edge_maps* maps, size_t image, int32_t* height, int32_t* width) {
  return map_of(maps->heatmaps, image, height, width);
}

const float* uce_edge_heatmap_spread(const uce_edge_maps* maps, size_t image, int32_t* height, int32_t* width) {
  return map_of(maps->spreads, image, height, width);
}

void uce_edge_free_maps(uce_edge_maps* maps) { delete maps; }

int32_t uce_edge_in_set(const uce_edge_model* model, const float* probabilities, unsigned char* in_set) {
  const uce_edge::Metadata& m = model->model.metadata();
  if (!m.sets) return -1;
  const std::vector<bool> inside =
      uce_edge::detail::contained(*m.sets, {probabilities, probabilities + m.classes.size()});
  if (in_set != nullptr) std::copy(inside.begin(), inside.end(), in_set);
  return std::int32_t(std::count(inside.begin(), inside.end(), true));
}

int uce_edge_warm_up(const uce_edge_model* model, size_t count, const uce_edge_passes* passes, int32_t runs,
                     uce_edge_error* error) {
  return guarded(error, [&] {
    Failure failure;
    model->model.warm_up(count, passes_of(passes), runs, failure);
    return failure;
  });
}

int uce_edge_self_test(const uce_edge_model* model, double* difference, uce_edge_error* error) {
  return guarded(error, [&] {
    Failure failure;
    const auto found = model->model.self_test(failure);
    if (failure) return failure;
    if (!found) return Failure::failed("The model has no probe images: it was published before there were any.");
    if (difference != nullptr) *difference = found->difference;
    if (found->passed()) return failure;
    return Failure::failed("The model answers its own probe images otherwise than when it was published: by " +
                           std::to_string(found->difference) + ".");
  });
}

}  // extern "C"
